"""Who will come: what a forward simulation assumes about jobs that are not there yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fairlead.core.errors import InputError
from fairlead.core.job import TIMED, Job
from fairlead.core.rng import stream
from fairlead.engine.state import State
from fairlead.workloads.throughput_tables import ThroughputTable


@dataclass(frozen=True)
class Forecast:
    """`nobody`: only who is there (Blox §5.2). `recent`: for as long as `window_s`, or as there is a past if that is shorter,
    jobs come as often as they did before, each one like some job of that time, drawn by `seed`."""

    arrivals: Literal["nobody", "recent"] = "nobody"
    window_s: float = 6 * 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.arrivals not in ("nobody", "recent"):
            raise InputError("forecast", "nobody or recent", field="arrivals", value=self.arrivals)
        if not 0 < self.window_s < float("inf"):
            raise InputError("forecast", "seconds above 0", field="window_s", value=self.window_s)

    def coming(self, now: float, past: Iterable[Job]) -> tuple[Job, ...]:
        """Jobs that are assumed to come; `past` are those that came, the latest first."""
        if self.arrivals == "nobody":
            return ()
        known = self._recent(now, past)
        if not known:
            return ()
        draw = stream(self.seed, "forecast", round(now * 1000))
        span_s = min(self.window_s, now)  # as far ahead as could be looked back
        count = int(draw.poisson(len(known)))
        when = sorted((now + span_s * draw.random(count)).tolist())
        like = draw.integers(len(known), size=count).tolist()
        return tuple(
            replace(known[one], name=f"forecast-{place}", submitted_s=second, after=(), group="", command="")
            for place, (second, one) in enumerate(zip(when, like))
        )

    def _recent(self, now: float, past: Iterable[Job]) -> Sequence[Job]:
        found = []
        for job in past:
            if job.submitted_s < now - self.window_s:
                break
            found.append(job)
        return found[::-1]


def lately(state: State, table: ThroughputTable) -> Iterator[Job]:
    """Who came to a cluster, the latest first, of kinds that `table` has: nobody else can be simulated to come again."""
    for number in sorted(state.job_of, reverse=True):
        job = state.job_of[number]
        if job.kind == TIMED or (job.kind, job.workers) in table.row_of:
            yield job
