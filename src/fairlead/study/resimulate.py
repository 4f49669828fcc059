"""The same days under other schedulers: what came from outside in a recorded run, simulated anew for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead.config import Part, SchedulerConfig
from fairlead.journals.opening import read_journal
from fairlead.report.metrics import DEFAULTS, MetricOptions, Summary, summarize
from fairlead.report.record import RunRecord
from fairlead.study.compare import Comparison, Outcome, Workload
from fairlead.study.outside import Outside, outside
from fairlead.study.simulate import Faults


@dataclass(frozen=True)
class Recorded:
    """A run that is over: the world that it ran in, and what came of it."""

    world: Outside
    record: RunRecord

    @classmethod
    def read(cls, where: str) -> Recorded:
        """From a journal: a file x.jsonl or x.sqlite, or an address of PostgreSQL."""
        name = "journal" if "://" in where else where
        world, record = outside(tuple(read_journal(where)), name)
        return cls(world, replace(record, scheduler=f"as it was: {record.scheduler}"))

    def under(self, policy: Part) -> SchedulerConfig:
        """The scheduler that it ran under, with another policy: rounds, placement, admission and estimation stay."""
        return replace(SchedulerConfig.from_data(self.world.scheduler), policy=policy, name="")


def comparison(run: Recorded, schedulers: Sequence[SchedulerConfig], metrics: MetricOptions = DEFAULTS) -> Comparison:
    world = run.world
    return Comparison(
        Workload(world.trace, world.table),
        world.cluster,
        schedulers,
        costs=world.costs,
        faults=Faults(world.outages),
        metrics=metrics,
        others=world.others,
    )


def beside(run: Recorded, given: Comparison, outcomes: Sequence[Outcome]) -> list[tuple[str, Summary]]:
    """What happened, and what would have: a row for each."""
    simulated = [(given.schedulers[outcome.case.scheduler].label, outcome.summary) for outcome in outcomes]
    return [(run.record.scheduler, summarize(run.record, given.metrics)), *simulated]


def records(run: Recorded, given: Comparison, outcomes: Sequence[Outcome]) -> list[RunRecord]:
    """The same for a report; the simulations must have kept theirs."""
    kept = [(o.record, given.schedulers[o.case.scheduler].label) for o in outcomes]
    return [run.record, *(replace(record, scheduler=label) for record, label in kept if record is not None)]
