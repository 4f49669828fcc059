"""A simulation whose scheduler is chosen anew every few rounds: the loop is stopped just before a round begins, the advisor
looks ahead from there, and a switch is an event in the journal like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fairlead.config.registry import Registry
from fairlead.core.errors import InputError
from fairlead.core.events import SchedulerSwitched
from fairlead.core.job import Job
from fairlead.core.plan import boundary_after
from fairlead.engine.event_journal import Journal, MemoryJournal, NoJournal
from fairlead.engine.state import State
from fairlead.experiments.simulate import Run, Simulation, begin, stop_of
from fairlead.experiments.synthesizer.advisor import Advice, Advisor

JUST_BEFORE = 1e-3
"""A look is taken this share of a round before it begins: what happened is known, and the round is the new scheduler's."""


@dataclass(frozen=True)
class Synthesized:
    """What came of it, and what was advised on the way."""

    run: Run
    advice: tuple[Advice, ...]

    @property
    def shares(self) -> dict[str, float]:
        """How much of the time each candidate decided."""
        end = self.run.state.time
        times = [one.time for one in self.advice] + [end]
        held: dict[str, float] = {one.running.label: 0.0 for one in self.advice[:1]}
        if self.advice:
            held[self.advice[0].running.label] += self.advice[0].time
        for one, until in zip(self.advice, times[1:]):
            held[one.chosen.label] = held.get(one.chosen.label, 0.0) + max(until - one.time, 0.0)
        total = sum(held.values())
        return {label: seconds / total for label, seconds in held.items()} if total else {}


def synthesize(
    given: Simulation,
    advisor: Advisor,
    *,
    every: int = 10,
    journal: Journal | None = None,
    registry: Registry | None = None,
    gantt: bool = False,
    on_progress: Callable[[float], None] | None = None,
    on_advice: Callable[[Advice], None] | None = None,
) -> Synthesized:
    """Run it. It starts under `given.scheduler`; after every so many rounds the advisor may name another
    candidate."""
    length = given.scheduler.round_s
    if length == 0:
        raise InputError("synthesize", "a scheduler with rounds", field="rounds", value="event-driven")
    if every < 1:
        raise InputError("synthesize", "a whole number of rounds from 1 on", field="every", value=every)
    if gantt and journal is None:
        journal = MemoryJournal()
    begun = begin(given, journal or NoJournal(), registry)
    loop, stop = begun.loop, stop_of(given, on_progress)
    over = False

    def ended(state: State) -> bool:
        nonlocal over
        over = stop is not None and stop(state)
        return over

    running, told = given.scheduler, list[Advice]()
    while not over and (loop.state.busy or not loop.backend.exhausted):
        here = loop.backend.now + 2 * JUST_BEFORE * length  # past the round that a look was taken before
        rounds = boundary_after(here, length) + (every - 1) * length
        before = loop.backend.now
        loop.run(until=rounds - JUST_BEFORE * length, stop=ended)
        if over or (not loop.state.busy and loop.backend.exhausted):
            break
        if loop.backend.now <= before:  # nothing can happen any more
            break
        if not loop.state.busy:
            continue
        view = loop.state.snapshot(loop.backend.now)
        advice = advisor.advise(view, running, memo=loop.state.memo, past=_latest_first(loop.state))
        told.append(advice)
        if on_advice is not None:
            on_advice(advice)
        if advice.switch:
            running = advice.chosen
            loop.record(SchedulerSwitched(loop.backend.now, running.to_data(), advice.why))
    run = begun.finish(given, gantt=gantt)
    record = replace(run.record, scheduler="synthesized")
    return Synthesized(replace(run, record=record), tuple(told))


def _latest_first(state: State) -> Iterator[Job]:
    return (state.job_of[number] for number in range(state.next_number - 1, -1, -1) if number in state.job_of)
