"""Models of the steps of elastic jobs, fitted to their reports, and the goodput that follows (Pollux §3).

    T_step  = (T_grad^γ + T_sync^γ)^(1/γ),   T_grad = α_g + β_g · local batch,   T_sync = α + β · max(workers − 2, 0)

with one (α, β) for workers on one node and another for several; a single worker has nothing to exchange. With s − 1 passes
before gradients are exchanged, T = (s − 1) · T_grad + T_step. Gradients of squared norm `sqr` and variance `var` (at the
smallest batch) make a batch of m times the smallest worth gain = (var + sqr) / (var / m + sqr) steps of it, and

    goodput = gain / T."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.client.batch_arithmetic import accumulation_steps
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.observations import observation_name
from fairlead.core.plan import ObservedValues

# Metrics that jobs report: the configuration of a step with T_grad and T_step; the noise of gradients; and the batch sizes that
# are possible, in all and on each worker, and from which on a single worker makes two passes.
NODES, WORKERS, LOCAL, COMPUTE, STEP = "step.nodes", "step.workers", "step.local_batch", "step.compute_s", "step.s"
SQR, VAR = "grad_sqr", "grad_var"
SMALLEST, LARGEST, LEAST_LOCAL, MOST_LOCAL = "batch.smallest", "batch.largest", "batch.least_local", "batch.most_local"
TWICE_ABOVE = "batch.twice_above"
REPORTED = (NODES, WORKERS, LOCAL, COMPUTE, STEP, SQR, VAR, SMALLEST, LARGEST, LEAST_LOCAL, MOST_LOCAL, TWICE_ABOVE)

_TINY = 1e-8
_OVERLAPS: Floats = np.array([1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0])
_SIZES = 24  # batch sizes that are tried for each number of workers

_SHORTEST_S, _LONGEST_S, _MOST_WORKERS, _MOST_SAMPLES, _MOST_NOISE = 1e-9, 1e6, 1e6, 1e12, 1e30  # of credible reports

Seen = Sequence[Sequence[float]]
"""For each configuration: nodes, workers, local batch, T_grad, T_step."""


def believable_steps(reported: Floats) -> Bools:
    """Which rows of (nodes, workers, local batch, T_grad, T_step) can be true."""
    nodes, workers, local, compute, step = reported.T
    fine = (nodes >= 1) & (nodes <= workers) & (workers <= _MOST_WORKERS) & (local >= 1) & (local <= _MOST_SAMPLES)
    return np.asarray(fine & (compute >= _SHORTEST_S) & (compute <= step) & (step <= _LONGEST_S))


def believable_limits(reported: Floats) -> Bools:
    """Which rows of (smallest, largest, least local, most local) can be true."""
    smallest, largest, least, most = reported.T
    fine = (smallest >= 1) & (smallest <= largest) & (largest <= _MOST_SAMPLES)
    return np.asarray(fine & (least >= 1) & (least <= most) & (most <= _MOST_SAMPLES))


@dataclass(frozen=True)
class StepModel:
    """The fitted parameters: of T_grad, of T_sync across nodes and inside one, and γ."""

    grad: tuple[float, float]
    across: tuple[float, float]
    inside: tuple[float, float]
    overlap: float

    @classmethod
    def of(cls, seen: Seen) -> StepModel:
        """Fit relative errors. Where too little was seen, the model is optimistic: half of T_grad is constant, T_sync is next
        to nothing, and across nodes a tenth more than inside one."""
        nodes, workers, local, compute, step = np.array(seen, dtype=np.float64).T
        if len(np.unique(local)) == 1:
            grad = float(compute.mean()) / 2, float((compute / local).mean()) / 2
        else:
            grad = _line(local, compute, compute)
        apart, together = nodes > 1, (nodes <= 1) & (workers > 1)
        candidates = []
        for overlap in _OVERLAPS.tolist():
            sync = np.maximum(step**overlap - compute**overlap, _TINY) ** (1 / overlap)
            lines = [_exchange(workers[which], sync[which], step[which]) for which in (apart, together)]
            network = np.where(apart, _at(lines[0], workers), np.where(together, _at(lines[1], workers), _TINY))
            off = np.log((compute**overlap + network**overlap) ** (1 / overlap) / step)
            candidates.append((float(np.sqrt((off**2).mean())) + 1e-3 * (overlap - 1) ** 2, overlap, lines))
        _, overlap, (across, inside) = min(candidates, key=lambda one: one[:2])
        if not apart.any():
            across = max(across[0], 1.1 * inside[0]), max(across[1], 1.1 * inside[1])
        return cls(grad, across, inside, overlap)

    def to_data(self) -> list[float]:
        return [*self.grad, *self.across, *self.inside, self.overlap]


def _line(x: Floats, y: Floats, scale: Floats) -> tuple[float, float]:
    """The α and β ≥ 0 with the least squares of (α + β·x − y) / scale."""
    one, slope, wanted = 1 / scale, x / scale, y / scale
    aa, bb, ab, ay, by = one @ one, slope @ slope, one @ slope, one @ wanted, slope @ wanted
    below = aa * bb - ab * ab
    if below > 1e-12 * aa * bb:
        alpha, beta = (bb * ay - ab * by) / below, (aa * by - ab * ay) / below
        if alpha >= 0 and beta >= 0:
            return max(float(alpha), _TINY), max(float(beta), _TINY)
        if alpha < 0:
            return _TINY, max(float(by / bb), _TINY)
    return max(float(ay / aa), _TINY), _TINY


def _exchange(workers: Floats, sync: Floats, scale: Floats) -> tuple[float, float]:
    if not len(workers):
        return _TINY, _TINY
    more = np.maximum(workers - 2, 0.0)
    if not more.any():
        return max(float((sync / scale).sum() / (1 / scale).sum()), _TINY), _TINY
    return _line(more, sync, scale)


def _at(line: tuple[float, float], workers: Floats) -> Floats:
    return line[0] + line[1] * np.maximum(workers - 2, 0.0)


def steps_observation(seen: Seen) -> dict[str, Any]:
    """The observation of a job's steps: the configurations, and the model fitted to them."""
    return {"seen": [list(one) for one in seen], "model": StepModel.of(seen).to_data()}


@dataclass(frozen=True)
class Goodputs:
    """The models, noise and limits of some jobs, a row each."""

    model: Floats  # jobs × 7
    noise: Floats  # jobs × (sqr, var)
    limits: Floats  # jobs × (smallest, largest, least local, most local)
    profiled: Ints  # the largest number of workers in its reports
    twice_above: Floats | None = None  # the batch above which a single worker makes two passes; None: the smallest

    @classmethod
    def of(cls, jobs: JobColumns, observations: ObservedValues) -> tuple[Bools, Goodputs]:
        """Which jobs have reported enough, and their models. An estimate of noise may fall below 0, and counts as 0."""
        noise = np.maximum(np.stack([jobs.metric(name) for name in (SQR, VAR)], axis=1), 0.0)
        limits = np.stack([jobs.metric(name) for name in (SMALLEST, LARGEST, LEAST_LOCAL, MOST_LOCAL)], axis=1)
        whole = believable_limits(limits) & (noise <= _MOST_NOISE).all(axis=1)
        names = (observation_name("steps", number) for number in jobs.number.tolist())
        known = [observations.get(name) if complete else None for name, complete in zip(names, whole.tolist())]
        modeled: Bools = np.array([one is not None for one in known], dtype=np.bool_)
        models = np.array([one["model"] for one in known if one is not None], dtype=np.float64).reshape(-1, 7)
        most = [max(int(seen[1]) for seen in one["seen"]) for one in known if one is not None]
        twice = jobs.metric(TWICE_ABOVE)[modeled]
        twice = np.where(np.isfinite(twice), twice, limits[modeled, 0])
        return modeled, cls(models, noise[modeled], limits[modeled], np.array(most, dtype=np.int64), twice)

    def only(self, rows: Ints | Bools) -> Goodputs:
        twice = None if self.twice_above is None else self.twice_above[rows]
        return Goodputs(self.model[rows], self.noise[rows], self.limits[rows], self.profiled[rows], twice)

    @property
    def most_workers(self) -> Ints:
        """The largest number of workers that can share the largest batch."""
        return np.maximum(self.limits[:, 1] // self.limits[:, 2], 1).astype(np.int64)

    def best(self, workers: Sequence[int] | Ints, across: Sequence[bool] | Bools) -> Floats:
        """Jobs × configurations: the goodput at each job's best batch size; 0 where a worker would have no part of a batch."""
        return self._best(np.array(workers, dtype=np.float64)[None, :, None], np.array(across, dtype=np.bool_)[None, :, None])

    def here(self, workers: Ints, across: Bools) -> Floats:
        """As above, with separate configurations of each job, a column for each; 0 without workers."""
        count = np.maximum(workers, 1).astype(np.float64)[:, :, None]
        return np.where(workers > 0, self._best(count, across[:, :, None]), 0.0)

    def _best(self, w: Floats, across: Bools) -> Floats:
        return np.asarray(self._goodputs(w, across)[0].max(axis=2, initial=0.0))

    def best_splits(self, workers: Ints, across: Bools) -> tuple[Ints, Ints]:
        """The local batch and the passes of each job's best batch size, for one configuration of each job."""
        good, local, passes = self._goodputs(workers.astype(np.float64)[:, None, None], across[:, None, None])
        best = np.arange(len(good)), 0, good.argmax(axis=2)[:, 0]
        return local[best].astype(np.int64), passes[best].astype(np.int64)

    def _goodputs(self, w: Floats, across: Bools) -> tuple[Floats, Floats, Floats]:
        """Jobs × configurations × batch sizes: the goodput, 0 where impossible, the local batch, and the passes."""
        smallest, largest, least, most = (column[:, None, None] for column in self.limits.T)
        lowest = np.maximum(smallest, least * w)
        share = np.linspace(0.0, 1.0, _SIZES)[None, None, :]
        wanted = lowest * np.maximum(largest / lowest, 1.0) ** share
        local, passes = self._split(wanted, w)
        fits = (lowest <= largest) & (local >= least) & (local <= most)
        batch = np.minimum(local * passes * w, largest)
        good = self._gain(batch / smallest) / self._time(local, passes, w, across)
        return np.where(fits, good, 0.0), local, passes

    def at_batch(self, batch_sizes: Floats, workers: Sequence[int] | Ints, on_a_node: int) -> Floats:
        """Jobs × numbers of workers: steps per second at the job's own batch size, on as few nodes as possible."""
        batch = batch_sizes[:, None, None]
        w = np.array(workers, dtype=np.float64)[None, :, None]
        local, passes = self._split(batch, w)
        good = self._gain(batch / self.limits[:, 0, None, None]) / self._time(local, passes, w, w > on_a_node)
        return np.asarray(np.where(batch >= w * self.limits[:, 2, None, None], good, 0.0)[:, :, 0])

    def _split(self, batch: Floats, workers: Floats) -> tuple[Floats, Floats]:
        """The local batch of a pass, and the number of passes."""
        twice = self.limits[:, 0] if self.twice_above is None else self.twice_above
        passes: Floats = accumulation_steps(batch, workers, self.limits[:, 3, None, None], twice[:, None, None])
        return np.ceil(batch / workers / passes - _TINY), passes

    def _gain(self, scale: Floats) -> Floats:
        sqr, var = (column[:, None, None] for column in self.noise.T)
        below = var / scale + sqr
        return np.asarray(np.divide(var + sqr, below, out=np.ones(below.shape), where=below > 0))

    def _time(self, local: Floats, passes: Floats, workers: Floats, across: Bools) -> Floats:
        a, b, far, further, near, nearer, overlap = (column[:, None, None] for column in self.model.T)
        grad = a + b * local
        more = np.maximum(workers - 2, 0.0)
        sync = np.where(across, far + further * more, np.where(workers > 1, near + nearer * more, _TINY))
        high = np.maximum(grad, sync)  # so that no power overflows
        step = high * ((grad / high) ** overlap + (sync / high) ** overlap) ** (1 / overlap)
        return np.asarray((passes - 1) * grad + step)
