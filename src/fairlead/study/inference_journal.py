"""Sessions served as a journal tells: by the accelerators that they had there, at the rates that they reported, from when their
replicas were up until they were taken away. The journal knows the accelerators; requests are drawn here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.backends.requests import Arrivals, Served, Serving, arrivals_of, serve
from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.inference import REPORTED, Resident, Server, ServingPlan, Session
from fairlead.core.job import Phase
from fairlead.core.rng import stream
from fairlead.engine.journal import read_events
from fairlead.engine.state import State
from fairlead.policies.nexus import Nexus
from fairlead.study.record import StretchRecorder
from fairlead.study.simulate import Run

STRETCHES = 1000
"""In which requests are drawn where there are too many."""


@dataclass
class _Told:
    """What a journal says of one session."""

    session: Session
    rates: list[tuple[float, float]]  # from which second on, how many a second
    batches: list[tuple[float, int]] = field(default_factory=list)  # from which second on, how many at once
    up: list[float] = field(default_factory=list)  # since when each of its launches has been at work


@dataclass(frozen=True)
class History:
    """Sessions of a journal: when they were there, and the accelerators they had meanwhile."""

    sessions: tuple[Session, ...]
    rates: Mapping[str, tuple[tuple[float, float, float], ...]]  # by session: from, until, requests per second
    plan: ServingPlan
    windows: tuple[tuple[float, float], ...]  # by server: from when until when it was there

    def requests(self, begin_s: float = 0.0, end_s: float = math.inf) -> float:
        """How many are to be expected."""
        parts = (part for parts in self.rates.values() for part in parts)
        return sum(rate * max(0.0, min(until, end_s) - max(since, begin_s)) for since, until, rate in parts)

    def served(self, *, begin_s: float = 0.0, end_s: float = math.inf, seed: int = 0, how: Arrivals = "poisson") -> Serving:
        """What becomes of the requests that come between two seconds."""
        arrivals = {s.name: self._arrivals(s, begin_s, end_s, seed, how) for s in self.sessions}
        return serve(self.plan, self.sessions, arrivals, self.windows)

    def sampled(self, most: float, seed: int = 0) -> Serving:
        """What becomes of all requests or, where they are more than so many, of those of some stretches: one of equal length in
        each of `STRETCHES` equal parts of the time, at a moment drawn at random. Latencies are those of the last of them."""
        if self.requests() <= most:
            return self.served(seed=seed)
        parts = [part for parts in self.rates.values() for part in parts]
        begin, end = min(since for since, _, _ in parts), max(until for _, until, _ in parts)
        each, length = (end - begin) / STRETCHES, (end - begin) / STRETCHES * most / self.requests()
        random, found = stream(seed, "stretches of requests"), list[Serving]()
        for number in range(STRETCHES):
            start = begin + (number + (1 - length / each) * float(random.random())) * each
            found.append(self.served(begin_s=start, end_s=start + length, seed=seed + number))
        return Serving(tuple(_added(each) for each in zip(*(one.sessions for one in found))), found[-1].busy)

    def _arrivals(self, session: Session, begin_s: float, end_s: float, seed: int, how: Arrivals) -> Floats:
        pieces = [np.zeros(0)]
        for at, (since, until, rate) in enumerate(self.rates[session.name]):
            since, until = max(since, begin_s), min(until, end_s)
            if until > since and rate > 0:
                one = replace(session, name=f"{session.name} {at}", rate=rate)
                pieces.append(since + arrivals_of(one, until - since, seed, how))
        return np.sort(np.concatenate(pieces))


def _added(parts: Sequence[Served]) -> Served:
    counts = {name: sum(getattr(one, name) for one in parts) for name in ("requests", "in_time", "late", "batches")}
    return replace(parts[-1], **counts)


def sessions_of(run: Run, most_requests: float = 1e6, seed: int = 0) -> Serving | None:
    """What became of the requests to a simulation's sessions, of at most about so many of them; None where it had none, or kept
    no journal."""
    policy = _nexus(run.state.scheduler)
    if policy is None or not any(job.name in policy.sessions for job in run.state.job_of.values()):
        return None
    return history_of(run.loop.journal, "simulation").sampled(most_requests, seed)


def read_history(path: Path) -> History:
    """The sessions of a journal whose scheduler is `nexus`."""
    return history_of(read_events(path), path)


def history_of(events: Iterable[ev.Event], path: Path | str) -> History:
    state: State | None = None
    policy: Nexus | None = None
    recorder = StretchRecorder()
    told: dict[int, _Told] = {}
    for event in events:
        if isinstance(event, ev.Opened) and state is None:
            state = State(event.cluster)
        if state is None:
            raise InputError(path, "a journal, which begins with an 'opened' event")
        if isinstance(event, (ev.Opened, ev.SchedulerSwitched)):
            policy = _nexus(event.scheduler) or policy
        elif isinstance(event, ev.JobSubmitted) and policy is not None and event.job.name in policy.sessions:
            session = policy.session(event.job.name)
            told[event.number] = _Told(session, [(event.time, session.rate)])
        elif isinstance(event, ev.MetricsReported) and event.name == REPORTED:
            for number, rate in zip(event.jobs.tolist(), event.values.tolist()):
                if number in told and rate > 0:
                    told[number].rates.append((event.time, rate))
        elif isinstance(event, ev.MemoChanged) and event.memo is not None:
            _note_batches(event.time, event.memo.get("routing", {}), told)
        elif isinstance(event, ev.ProgressReported):
            for number, since in zip(event.jobs.tolist(), event.since.tolist()):
                if number in told:
                    told[number].up.append(since)
        state.apply(event)
        recorder.see(event)
    if state is None or policy is None or not told:
        raise InputError(path, "a journal of policy 'nexus' with jobs that are sessions")
    return _history(state, recorder, told)


def _nexus(scheduler: Mapping[str, Any]) -> Nexus | None:
    """The policy of a journal's scheduler, where it is this one."""
    known = {name: part for name, part in scheduler.items() if name == "policy"}
    said = known.get("policy")
    if (said.get("name") if isinstance(said, Mapping) else said) != "nexus":
        return None
    made = SchedulerConfig.from_data(known).build(None).policy
    return made if isinstance(made, Nexus) else None


def _note_batches(second: float, routing: Mapping[str, Mapping[str, Any]], told: Mapping[int, _Told]) -> None:
    for one in told.values():
        if one.session.name in routing:
            one.batches.append((second, int(routing[one.session.name]["batch"])))


def _in_force(batches: Sequence[tuple[float, int]], begin_s: float, end_s: float) -> list[tuple[float, float, int]]:
    """Which batch size held from when until when, between two seconds; before any was planned, single requests."""
    sizes = [size for second, size in batches if second <= begin_s][-1:] or [1]
    cuts = [(second, size) for second, size in batches if begin_s < second < end_s]
    found = [(begin_s, end_s, sizes[0])]
    for second, size in cuts:
        since, until, before = found[-1]
        if size != before:
            found[-1:] = [(since, second, before), (second, until, size)]
    return found


def _history(state: State, recorder: StretchRecorder, told: Mapping[int, _Told]) -> History:
    cluster, jobs = state.cluster, state.everybody()
    numbers = sorted(state.job_of)
    stretches = recorder.stretches(state.time, {number: number for number in numbers})
    servers: list[Server] = []
    windows: list[tuple[float, float]] = []
    columns = (stretches.job, stretches.accelerator, stretches.start_s, stretches.end_s)
    for number, place, start, end in zip(*(column.tolist() for column in columns)):
        if number not in told:
            continue
        one, kind = told[number], cluster.type_names[int(cluster.type_of[place])]
        if kind not in one.session.latency_s:  # it was left there by a policy that knew nothing of sessions
            continue
        up = min((since for since in one.up if start <= since), default=start)
        for since, until, size in _in_force(one.batches, up, end):
            batch = max(1, min(size, len(one.session.latency_s[kind])))
            servers.append(Server(kind, (Resident(one.session.name, batch, 1.0, 1.0),)))
            windows.append((since, until))
    ends = {
        number: float(ended) if phase > int(Phase.RUNNING) else state.time
        for number, phase, ended in zip(jobs.number.tolist(), jobs.phase.tolist(), jobs.ended_s.tolist())
    }
    rates: dict[str, list[tuple[float, float, float]]] = {}
    for number, one in told.items():
        seconds = [since for since, _ in one.rates[1:]] + [ends[number]]
        parts = [(since, until, rate) for (since, rate), until in zip(one.rates, seconds) if until > since]
        rates.setdefault(one.session.name, []).extend(parts)
    sessions = {one.session.name: one.session for one in told.values()}
    plan = ServingPlan(tuple(servers), {})
    return History(tuple(sessions.values()), {name: tuple(parts) for name, parts in rates.items()}, plan, tuple(windows))
