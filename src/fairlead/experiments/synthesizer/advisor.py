"""The advisor: asked at a moment, it simulates every candidate forward, in parallel processes, and says which should decide.

The running combination is looked at first; another one is given up as soon as it cannot beat the best so far. Who differs
from another in what cannot matter is not looked at twice. What is advised depends on the moment alone, not on how many
processes looked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import TracebackType

from fairlead.config import Part, SchedulerConfig
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.job import Job
from fairlead.core.snapshot import Snapshot
from fairlead.experiments.process_pool import ProcessPool
from fairlead.experiments.synthesizer.arrivals import Forecast
from fairlead.experiments.synthesizer.outlook import CandidateForecast, Limit, Moment, Objective, look_ahead
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

# What the synthesizer may choose from: every admission with every policy, and every placement where several are given.


def combinations(
    base: SchedulerConfig,
    policies: Sequence[Part],
    admissions: Sequence[Part] = (),
    placements: Sequence[Part] = (),
) -> tuple[SchedulerConfig, ...]:
    """`base` with each policy, admission and placement; where none are given, its own. Rounds and all else stay as they are."""
    if not policies:
        raise InputError("synthesize", "at least one policy", field="policies")
    several = len(placements) > 1
    choices = product(policies, admissions or (base.admission,), placements or (base.placement,))
    found = [
        replace(base, policy=policy, admission=admission, placement=where, name=_name(policy, admission, where, several))
        for policy, admission, where in choices
    ]
    return apart(found)


def apart(candidates: Sequence[SchedulerConfig]) -> tuple[SchedulerConfig, ...]:
    """The same, each by a name of its own: what two of them differ in may be more than a name has room for."""
    told: list[SchedulerConfig] = []
    for one in candidates:
        if any(replace(other, name="") == replace(one, name="") for other in told):
            raise InputError("synthesize", "every candidate once", field="candidates", value=one.label)
        taken, label = {other.label for other in told}, one.label
        names = (label, *(f"{label} ({count})" for count in range(2, len(told) + 2)))
        name = next(name for name in names if name not in taken)
        told.append(one if name == label else replace(one, name=name))
    return tuple(told)


def _name(policy: Part, admission: Part, placement: Part, several_placements: bool) -> str:
    parts = [policy]
    if admission != Part("accept-all"):
        parts.append(admission)
    if several_placements:
        parts.append(placement)
    return " + ".join(map(str, parts))


@dataclass(frozen=True)
class Advice:
    """What was seen of every candidate, and which should decide from here on."""

    time: float
    running: SchedulerConfig
    chosen: SchedulerConfig
    outlooks: tuple[tuple[str, CandidateForecast], ...]  # the running one first
    gain: float  # by how much of the running one's score it is better
    took_s: float = 0.0

    @property
    def switch(self) -> bool:
        return self.chosen.label != self.running.label

    @property
    def why(self) -> str:
        """For the journal: what the chosen one is expected to give, and what the running one would have given."""
        seen = dict(self.outlooks)
        new, old = seen[self.chosen.label], seen[self.running.label]
        return (
            f"synthesizer: {self.chosen.label} instead of {self.running.label}, {self.gain:.1%} better: "
            f"jobs end after {new.jct_s:.0f} s instead of {old.jct_s:.0f} s, "
            f"begin after {new.responsiveness_s:.0f} s instead of {old.responsiveness_s:.0f} s"
        )


class Advisor:
    """Candidates, what is wanted, and what is assumed of the future. It keeps its processes until it is closed."""

    def __init__(
        self,
        candidates: Sequence[SchedulerConfig],
        table: ThroughputTable,
        *,
        wanted: Objective | None = None,
        forecast: Forecast | None = None,
        costs: Costs | None = None,
        margin: float = 0.01,
        processes: int = 1,
    ) -> None:
        if not candidates:
            raise InputError("synthesize", "at least one candidate", field="candidates")
        if not 0 <= margin < math.inf:
            raise InputError("synthesize", "a share from 0 on, as in 0.01", field="margin", value=margin)
        for candidate in candidates:
            candidate.build(table)  # what is wrong with it is said now
        self.candidates, self.table = apart(candidates), table  # from here on one is known by its name
        self.wanted, self.forecast = wanted or Objective(), forecast or Forecast()
        self.costs, self.margin = costs or Costs(), margin
        self._processes = min(processes, len(self.candidates))
        self._crew: ProcessPool | None = None

    def __enter__(self) -> Advisor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._crew is not None:
            self._crew.__exit__(kind, error, trace)
            self._crew = None

    def advise(self, view: Snapshot, running: SchedulerConfig, *, memo: Memo = None, past: Iterable[Job] = ()) -> Advice:
        """Who should decide from this moment on; `past` are the jobs that came, the latest first."""
        began = time.perf_counter()
        running = self._known(running)
        moment = Moment(view.detached(), running, memo, self.forecast.coming(view.time, past), self.costs)
        current = look_ahead(moment, running, self.table)
        reference = CandidateForecast(0.0, 0.0) if current.problem else current
        looked = [(running, current)]
        if len(view.jobs) or len(view.queued):
            others = [one for one in self.candidates if one.label != running.label]
            seen = {moment.fate_of(running): current}
            distinct = {fate: one for one in reversed(others) if (fate := moment.fate_of(one)) not in seen}
            first = list(distinct.values())[::-1]  # of those who would fare alike
            seen |= zip(map(moment.fate_of, first), self._look(moment, first, reference))
            looked += [(one, seen[moment.fate_of(one)]) for one in others]
        here, *rest = [(self.wanted.score(outlook, reference), place) for place, (_, outlook) in enumerate(looked)]
        best = min((score for score in rest if looked[score[1]][1].complete), default=here)
        gain = 1.0 - best[0] / here[0] if math.isfinite(here[0]) else float(math.isfinite(best[0]))
        chosen = looked[best[1]][0] if gain > self.margin else running
        outlooks = {one.label: outlook for one, outlook in looked}
        order = [running.label, *(one.label for one in self.candidates)]
        told = tuple((label, outlooks[label]) for label in dict.fromkeys(order) if label in outlooks)
        return Advice(view.time, running, chosen, told, max(gain, 0.0), time.perf_counter() - began)

    def _known(self, running: SchedulerConfig) -> SchedulerConfig:
        """The candidate that a scheduler is, whatever it is called; one that is none does not go by a candidate's name."""
        for one in self.candidates:
            if replace(one, name="") == replace(running, name=""):
                return one
        taken = {one.label for one in self.candidates}
        return replace(running, name=f"{running.label}, as it is") if running.label in taken else running

    def _look(self, moment: Moment, others: Sequence[SchedulerConfig], reference: CandidateForecast) -> list[CandidateForecast]:
        if self._processes <= 1 or len(others) <= 1:
            return _look_at(moment, others, self.table, self.wanted, reference)
        if self._crew is None:
            self._crew = ProcessPool(self._processes, _begin, (self.table,))
        shares = [others[first :: self._processes] for first in range(self._processes)]
        waiting = [self._crew.submit(_look_apart, moment, share, self.wanted, reference) for share in shares]
        outlooks: list[CandidateForecast] = [reference] * len(others)
        for first, found in enumerate(waiting):
            outlooks[first :: self._processes] = found.result()
        return outlooks


def _look_at(
    moment: Moment,
    candidates: Sequence[SchedulerConfig],
    table: ThroughputTable,
    wanted: Objective,
    reference: CandidateForecast,
) -> list[CandidateForecast]:
    """One after the other; each is given up once the best before it is out of its reach."""
    outlooks: list[CandidateForecast] = []
    best = wanted.score(reference, reference) if reference.jct_s else math.inf
    for candidate in candidates:
        outlooks.append(look_ahead(moment, candidate, table, Limit(wanted, reference, best)))
        if outlooks[-1].complete:
            best = min(best, wanted.score(outlooks[-1], reference))
    return outlooks


_table: ThroughputTable | None = None  # in a process of the pool: it is large and never changes


def _begin(table: ThroughputTable) -> None:
    global _table
    _table = table


def _look_apart(
    moment: Moment, candidates: Sequence[SchedulerConfig], wanted: Objective, reference: CandidateForecast
) -> list[CandidateForecast]:
    assert _table is not None
    return _look_at(moment, candidates, _table, wanted, reference)
