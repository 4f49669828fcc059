"""What elastic jobs tell on their way, made into models: how long a step takes at any number of workers (`core.goodput`), and how
their loss goes on (`core.convergence`). One fact for each job and each of the two; a fact is replaced when a job tells something
about a configuration in which it was not seen, or reports a loss after a tenth more steps.

Throughputs at the size that was asked for are the table's; at other sizes they are the model's, at the job's own batch size, and
nothing is known of who has not told anything yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.core import convergence, goodput
from fairlead.core.cluster import Floats, Ints
from fairlead.core.goodput import COMPUTE, LOCAL, NODES, STEP, WORKERS, Goodputs
from fairlead.core.job import batch_size_of
from fairlead.core.losses import LOSS
from fairlead.core.plan import Lesson, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.oracle import Oracle
from fairlead.estimation.rows import RateTable

_FURTHER = 1.1
_MOST_SEEN = 64
"""Configurations of one job that are remembered, the latest ones."""


@dataclass(frozen=True)
class Fitted:
    """Models of steps and losses from what jobs report; the table's throughputs for the sizes they asked for."""

    table: RateTable
    _oracle: list[Oracle] = field(default_factory=list, init=False, repr=False, compare=False)

    def learn(self, view: Snapshot) -> Lesson:
        return Lesson({**_steps(view), **_losses(view)})

    def rates(self, view: Snapshot) -> Rates:
        if not self._oracle:
            self._oracle.append(Oracle(self.table))
        base = self._oracle[0].rates(view)
        told, models = Goodputs.of(view.jobs, view.learned)
        if not told.any():
            return replace(base, other_sizes=None)
        return _by_model(base, ModelSizes(view, base, told.nonzero()[0], models))


def _by_model(base: Rates, sizes: ModelSizes) -> Rates:
    """The same rates, with a class of its own for each job that has a model."""
    used, row = np.unique(base.row, return_inverse=True)
    row[sizes.told] = len(used) + np.arange(len(sizes.told))
    classes = np.concatenate((used, base.row[sizes.told]))
    paired = base.paired[np.ix_(classes, classes)]
    return Rates(row, base.alone[classes], base.spread[classes], paired, other_sizes=sizes)


class ModelSizes:
    """Rates at other sizes, as the models have them. They are the same on every type that a job can run on."""

    def __init__(self, view: Snapshot, base: Rates, told: Ints, models: Goodputs) -> None:
        self.told, self._models = told, models
        self._runs: Floats = (base.alone[base.row[told]] > 0).astype(np.float64)
        self._others = len(np.unique(base.row))  # classes without a model, which come first
        self._on_a_node = int(view.cluster.node_size.max())
        self._most = int(view.capacity.max(initial=1))
        names, kinds = view.names.kinds, view.jobs.kind[told].tolist()
        own: Floats = np.array([float(batch_size_of(names[kind]) or 0) for kind in kinds])
        self._batch: Floats = np.maximum(own, models.limits[:, 0])

    @property
    def sizes(self) -> range:
        most = int(self._models.most_workers.max(initial=0))
        return range(1, min(most, self._most) + 1)

    def at(self, workers: int) -> Floats:
        rates = self._models.at_batch(self._batch, workers, self._on_a_node)
        return np.concatenate((np.zeros((self._others, self._runs.shape[1])), rates[:, None] * self._runs))


def _steps(view: Snapshot) -> dict[str, object]:
    jobs, facts = view.jobs, dict[str, object]()
    told = np.stack([jobs.metric(name) for name in (NODES, WORKERS, LOCAL, COMPUTE, STEP)], axis=1)
    sound = (np.isfinite(told) & (told > 0)).all(axis=1) & (told[:, 4] >= told[:, 3])
    for at in sound.nonzero()[0].tolist():
        number, one = int(jobs.number[at]), told[at].tolist()
        seen = goodput.seen_of(view.learned, number)
        if not any(list(other[:3]) == one[:3] for other in seen):
            facts[goodput.fact_of(number)] = goodput.learned([*seen, one][-_MOST_SEEN:])
    return facts


def _losses(view: Snapshot) -> dict[str, object]:
    jobs, facts = view.jobs, dict[str, object]()
    losses = jobs.metric(LOSS)
    for at in (np.isfinite(losses) & (losses > 0)).nonzero()[0].tolist():
        number, done = int(jobs.number[at]), float(jobs.steps_done[at])
        known = view.learned.get(convergence.fact_of(number))
        points = known["points"] if known else []
        if done > 0 and (not points or (done >= _FURTHER * points[-1][0] and losses[at] != points[-1][1])):
            facts[convergence.fact_of(number)] = convergence.learned([*points, [done, float(losses[at])]])
    return facts
