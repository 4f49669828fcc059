"""The time that starts, saves and loads cost a simulated job, and how much slower a gang is on several racks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fairlead.core.errors import InputError, check_number
from fairlead.core.job import model_of
from fairlead.core.rng import stream

MAX_COST_S = 1e9
MIN_RACK_SPEED = 1e-3
RACK_SPEED = f"a fraction of the rate, from {MIN_RACK_SPEED:g} to 1"


@dataclass(frozen=True)
class Costs:
    """Seconds lost by starting, saving and loading; `by_kind` has other values for some job types.

    A job checkpoints when it is suspended, and every `checkpoint_every_s` while it runs; each save takes `checkpoint_s`,
    without progress. The first start takes `launch_s`, every later one `restart_s`. A plan is carried out `decision_s` after
    the moment that it decides on, so that of jobs with equally many rounds, the running ones have attained less service.

    A gang on several racks has `rack_speed` of its rate.

    With a `seed`, one of the deviations `starts_vary_s` is added to each start, and a decision takes one of `decisions_vary_s`.
    `unseen_s` is how much longer restarts may take if none was observed: they wait for the job that leaves.
    """

    launch_s: float = 0.0
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float = math.inf
    by_kind: Mapping[str, Costs] = field(default_factory=dict)
    decision_s: float = 0.0
    starts_vary_s: tuple[float, ...] = ()
    decisions_vary_s: tuple[float, ...] = ()
    unseen_s: float = 0.0
    seed: int | None = None
    rack_speed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("launch_s", "restart_s", "checkpoint_s", "decision_s"):
            check_number("costs", name, getattr(self, name), f"seconds from 0 to {MAX_COST_S:g}", 0.0, MAX_COST_S)
        check_number("costs", "checkpoint_every_s", self.checkpoint_every_s, "seconds above 0", math.ulp(0.0))
        check_number("costs", "rack_speed", self.rack_speed, RACK_SPEED, MIN_RACK_SPEED, 1.0)
        if not isinstance(self.by_kind, Mapping) or not all(isinstance(one, Costs) for one in self.by_kind.values()):
            raise InputError("costs", "a Costs for each job type", field="by_kind", value=self.by_kind)

    @property
    def longest_start_s(self) -> float:
        """The longest start of any job type."""
        return max(max(cost.launch_s, cost.restart_s) for cost in (self, *self.by_kind.values()))

    @property
    def varies(self) -> bool:
        """Whether runs with different seeds differ."""
        return len(self.starts_vary_s) > 1 or len(self.decisions_vary_s) > 1

    def drawn(self, seed: int) -> Costs:
        """The costs of one scenario: means are as uncertain as the number of observed starts leaves them."""
        draw, vary = stream(seed, "costs"), self.starts_vary_s
        shift = float(draw.choice(vary, len(vary)).mean()) if vary else 0.0
        extra = shift + self.unseen_s * float(draw.random())

        def changed(one: Costs) -> Costs:
            return replace(one, launch_s=max(0.0, one.launch_s + shift), restart_s=max(0.0, one.restart_s + extra))

        return replace(changed(self), seed=seed, by_kind={kind: changed(one) for kind, one in self.by_kind.items()})

    def decision_delays(self) -> Callable[[], float] | None:
        """The time of each decision, one after the other; None if they take none."""
        if self.seed is None or not self.decisions_vary_s:
            return (lambda: self.decision_s) if self.decision_s else None
        draw = stream(self.seed, "decisions")
        return lambda: self.decisions_vary_s[int(draw.integers(len(self.decisions_vary_s)))]

    def of(self, kind: str) -> Costs:
        """The costs of a job type: its own, or those of its model, or those of all."""
        if not self.by_kind:
            return self
        return self.by_kind.get(kind) or self.by_kind.get(model_of(kind), self)
