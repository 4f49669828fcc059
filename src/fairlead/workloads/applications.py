"""Applications as Pollux' authors measured them (OSDI'21, §5.1): how long a step takes on a placement at a local batch size,
how noisy the gradients are during training, and how much work a training is. A folder holds one folder for each application:

placements.csv     placement (digits: accelerators on each node), local_bsz, step_time, sync_time
scalability.csv    the same by num_nodes and num_replicas, for many nodes
validation-B.csv   a row for each epoch at batch size B: progress, grad_sqr, grad_var

Progress is counted in steps at the smallest batch size: a step at a larger one counts by its gain

    gain(B) = (var + sqr) / (var / scale + sqr),   scale = B / smallest   (Pollux eq. 7).

This module knows no scheduler."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fairlead.client.batch_arithmetic import accumulation_steps
from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.errors import InputError, near_or_all, require
from fairlead.core.job import ELASTIC, TIMED, batch_size_of, model_of
from fairlead.core.plan import TUNED
from fairlead.models import goodput
from fairlead.models.goodput import Goodputs, StepModel
from fairlead.workloads.dynamics import JobDynamics, RunConditions, Speed
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

_MAX_LOCAL = {"yolov3": 8}
"""Limits of the authors where more was measured than fits everywhere."""

_RIGID = ("ncf",)
"""Applications that the authors' simulator gives one worker and the requested batch size under every scheduler."""

_TUNING_S = 30.0
"""How long a job runs after a start or a change until it tunes its batch size again. The authors' jobs tune once a minute, and
half of the minute after a start is the restart."""


@dataclass(frozen=True)
class BatchSplit:
    """A batch in pieces: each worker does `passes` times `local` samples before gradients are exchanged."""

    local: int
    passes: int

    def batch_size(self, workers: int) -> int:
        """The batch size of all workers."""
        return workers * self.local * self.passes


@dataclass(frozen=True)
class StepTimeCurve:
    """Seconds of a step and of its exchange of gradients, by local batch size."""

    local: Floats
    step_s: Floats
    sync_s: Floats

    def at(self, local: Floats | float) -> tuple[Floats, Floats]:
        """Interpolated; beyond the measured range, the value at its edge."""
        return _interp(local, self.local, self.step_s), _interp(local, self.local, self.sync_s)


@dataclass(frozen=True)
class Application:
    """A measured application. `batch_sizes` are those at which it was trained, ascending; `progress` (by batch size and epoch)
    is the end of each epoch."""

    name: str
    placed: Mapping[tuple[int, ...], StepTimeCurve]  # by accelerators on each node, in the smallest rotation
    sized: Mapping[tuple[int, int], StepTimeCurve]  # by nodes and workers
    batch_sizes: Ints
    progress: Floats  # batch sizes × epochs
    grad_sqr: Floats
    grad_var: Floats
    _curves: dict[tuple[int, ...], StepTimeCurve] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def ends(self) -> Floats:
        """The progress at which each epoch ends, at any batch size."""
        return np.asarray(self.progress.min(axis=0))

    @property
    def steps(self) -> float:
        """The work of a whole training."""
        return float(self.ends[-1])

    @property
    def smallest(self) -> int:
        """The smallest batch size."""
        return int(self.batch_sizes[0])

    @property
    def largest(self) -> int:
        """The largest batch size."""
        return int(self.batch_sizes[-1])

    @cached_property
    def min_local(self) -> int:
        """The smallest local batch size that was measured."""
        return int(min(curve.local[0] for curve in self.placed.values()))

    @cached_property
    def max_local(self) -> int:
        """The largest local batch size."""
        measured = int(max(curve.local[-1] for curve in self.placed.values()))
        return min(measured, _MAX_LOCAL.get(self.name, measured))

    @cached_property
    def limits(self) -> Floats:
        """One row of `Goodputs.limits`."""
        return np.array([(self.smallest, self.largest, self.min_local, self.max_local)], dtype=np.float64)

    def epoch(self, progress: float) -> int:
        """The epoch of a job; progress slightly before its end counts as its end."""
        at = int(self.ends.searchsorted(progress * (1 + 1e-9) + 1e-9, side="right"))
        return min(at, len(self.ends) - 1)

    def split(self, batch_size: int, workers: int) -> BatchSplit:
        """The split of a batch into pieces as large as fit."""
        local = math.ceil(batch_size / workers - 1e-8)
        passes = int(accumulation_steps(batch_size, workers, self.max_local, self.smallest))
        piece = math.ceil(local / passes - 1e-8)
        return BatchSplit(max(1, min(piece, self.largest // (workers * passes))), passes)

    def rate(self, per_node: tuple[int, ...], split: BatchSplit, epoch: int) -> float:
        """Progress per second."""
        batch = min(max(split.batch_size(sum(per_node)), self.smallest), self.largest)
        return self.gain(batch, epoch) / self.step_s(per_node, split)

    def gain(self, batch_size: int, epoch: int) -> float:
        """Progress of a step."""
        sqr, var = self.noise(batch_size, epoch)
        return float(_gain(sqr, var, batch_size / self.smallest))

    def run_s(self, per_node: tuple[int, ...], split: BatchSplit) -> float:
        """Seconds of a whole training on one placement with one split."""
        batch = min(max(split.batch_size(sum(per_node)), self.smallest), self.largest)
        above = min(int(self.batch_sizes.searchsorted(batch)), len(self.batch_sizes) - 1)
        below = max(above - 1, 0)
        share = (
            0.0 if above == below else (batch - self.batch_sizes[below]) / (self.batch_sizes[above] - self.batch_sizes[below])
        )
        sqr, var = ((1 - share) * grad[below] + share * grad[above] for grad in (self.grad_sqr, self.grad_var))
        gain = _gain(sqr, var, batch / self.smallest)
        return float((np.diff(self.ends, prepend=0.0) / gain).sum()) * self.step_s(per_node, split)

    def step_s(self, per_node: tuple[int, ...], split: BatchSplit) -> float:
        """Seconds of a step."""
        step_s, sync_s = self.curve(per_node).at(split.local)
        return float(step_s + (split.passes - 1) * (step_s - sync_s))

    def noise(self, batch_size: Floats | float, epoch: int) -> tuple[Floats, Floats]:
        """Squared norm and variance of gradients in an epoch, at the scale of the smallest batch."""
        sizes = self.batch_sizes
        return _interp(batch_size, sizes, self.grad_sqr[:, epoch]), _interp(batch_size, sizes, self.grad_var[:, epoch])

    def curve(self, per_node: tuple[int, ...]) -> StepTimeCurve:
        """The measured curve of this placement, or one interpolated between fewer and more nodes with as many workers per
        node."""
        known = self._curves.get(per_node)
        if known is None:
            turned = min(per_node[at:] + per_node[:at] for at in range(len(per_node)))
            known = self._curves[per_node] = self.placed.get(turned) or self._between(len(per_node), sum(per_node))
        return known

    def _between(self, nodes: int, workers: int) -> StepTimeCurve:
        counts = sorted({count for count, _ in self.sized})
        wanted = min(max(nodes, counts[0]), counts[-1])
        above = min(count for count in counts if count >= wanted)
        below = max(count for count in counts if count <= wanted)
        each = workers / nodes
        high = self._on(above, each * above)
        if above == below:
            return high
        return _mixed(self._on(below, each * below), high, (wanted - below) / (above - below))

    def _on(self, nodes: int, workers: float) -> StepTimeCurve:
        sizes = sorted(size for count, size in self.sized if count == nodes)
        wanted = min(max(workers, sizes[0]), sizes[-1])
        above = min(size for size in sizes if size >= wanted)
        below = max(size for size in sizes if size <= wanted)
        high = self.sized[nodes, above]
        return high if above == below else _mixed(self.sized[nodes, below], high, (wanted - below) / (above - below))


def consolidated_placement(workers: int, on_a_node: int) -> tuple[int, ...]:
    """The placement on as few nodes as possible."""
    whole, rest = divmod(workers, on_a_node)
    return (on_a_node,) * whole + ((rest,) if rest else ())


def _interp(at: Floats | float, x: Floats | Ints, y: Floats) -> Floats:
    return np.asarray(np.interp(at, x, y))


def _gain(sqr: Floats, var: Floats, scale: Floats | float) -> Floats:
    return (var + sqr) / (var / scale + sqr)


def _mixed(one: StepTimeCurve, other: StepTimeCurve, share: float) -> StepTimeCurve:
    local = np.union1d(one.local, other.local)
    (step, sync), (step_too, sync_too) = one.at(local), other.at(local)
    return StepTimeCurve(local, step + share * (step_too - step), sync + share * (sync_too - sync))


def read_applications(folder: Path) -> dict[str, Application]:
    """Read the applications of a folder, by name."""
    require(folder.is_dir(), folder, "a folder of applications, each a folder with placements.csv")
    found = {path.parent.name: _read(path.parent) for path in sorted(folder.glob("*/placements.csv"))}
    require(found, folder, "folders of applications with placements.csv, scalability.csv and validation-*.csv")
    return found


def _read(folder: Path) -> Application:
    placed: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    sized: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    for row in _rows(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time")):
        digits = tuple(int(digit) for digit in str(int(row[0])))
        placed.setdefault(digits, []).append((row[1], row[2], row[3]))
        sized.setdefault((len(digits), sum(digits)), []).append((row[1], row[2], row[3]))
    for row in _rows(folder / "scalability.csv", ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
        sized.setdefault((int(row[0]), int(row[1])), []).append((row[2], row[3], row[4]))
    runs = {_size_of(path): path for path in folder.glob("validation-*.csv")}
    if not placed or not runs:
        raise InputError(folder, "measured placements, and a validation-B.csv for each batch size B")
    sizes = sorted(runs)
    trained = [np.array(list(_rows(runs[size], ("progress", "grad_sqr", "grad_var")))) for size in sizes]
    epochs = min(len(run) for run in trained)
    require(epochs, folder, "at least one epoch in each validation-B.csv")
    columns = np.stack([run[:epochs] for run in trained])
    curves = {digits: _curve(points) for digits, points in placed.items()}
    by_size = {key: _curve(points) for key, points in sized.items()}
    return Application(folder.name, curves, by_size, np.array(sizes), columns[:, :, 0], columns[:, :, 1], columns[:, :, 2])


def _curve(points: list[tuple[float, float, float]]) -> StepTimeCurve:
    """The mean of several measurements at one local batch size."""
    measured = np.array(points)
    local, of = np.unique(measured[:, 0], return_inverse=True)
    count = np.bincount(of)
    return StepTimeCurve(local, np.bincount(of, measured[:, 1]) / count, np.bincount(of, measured[:, 2]) / count)


def _size_of(path: Path) -> int:
    written = path.stem.removeprefix("validation-")
    require(written.isdigit(), path, "a name as in validation-128.csv")
    return int(written)


def _rows(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[float, ...]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(path, f"a file that can be read ({problem})") from None
    rows = csv.DictReader(text.splitlines())
    for name in wanted:
        if name not in (rows.fieldnames or ()):
            raise InputError(path, f"columns {', '.join(wanted)}", line=1, field=name)
    for row in rows:
        values = []
        for name in wanted:
            try:
                value = float(row[name])
            except (TypeError, ValueError):
                value = math.nan
            if not 0 <= value < math.inf:
                raise InputError(path, "a number of at least 0", line=rows.line_num, field=name, value=row[name])
            values.append(value)
        yield tuple(values)


SOURCE = "applications"


@dataclass(frozen=True)
class TuningState:
    """What a job that tunes its batch size has measured: its configurations as `goodput.Seen`, the model of them, and the last
    noise of its gradients. Pollux' agent keeps the same over restarts (§4.1)."""

    seen: tuple[tuple[float, ...], ...] = ()
    model: StepModel | None = None
    noise: tuple[float, float] = (0.0, 0.0)
    _best: dict[tuple[int, ...], BatchSplit] = field(default_factory=dict, init=False, repr=False, compare=False)

    def best(self, app: Application, per_node: tuple[int, ...]) -> BatchSplit:
        """The split with the best goodput by the model; for a job that has measured nothing, the smallest."""
        known = self._best.get(per_node)
        if known is None:
            known = self._best[per_node] = self._best_split(app, per_node)
        return known

    def _best_split(self, app: Application, per_node: tuple[int, ...]) -> BatchSplit:
        workers = sum(per_node)
        if self.model is None or app.min_local * workers >= app.largest:
            return app.split(min(max(app.smallest, app.min_local * workers), app.largest), workers)
        one = Goodputs(np.array([self.model.to_data()]), np.array([self.noise]), app.limits, np.array([workers]))
        local, passes = one.best_splits(np.array([workers]), np.array([len(per_node) > 1]))
        return BatchSplit(max(1, min(int(local[0]), app.largest // (workers * int(passes[0])))), int(passes[0]))

    def after(self, app: Application, per_node: tuple[int, ...], split: BatchSplit, epoch: int) -> TuningState:
        """The state after progress with this split. Each configuration is measured once."""
        workers = sum(per_node)
        sqr, var = app.noise(split.batch_size(workers), epoch)
        noise = float(sqr), float(var)
        configuration = float(len(per_node)), float(workers), float(split.local)
        if any(one[:3] == configuration for one in self.seen):
            return self if noise == self.noise else TuningState(self.seen, self.model, noise)
        step_s, sync_s = app.curve(per_node).at(split.local)
        seen = (*self.seen, (*configuration, float(step_s - sync_s), float(step_s)))
        return TuningState(seen, StepModel.of(seen), noise)


@dataclass(frozen=True)
class ApplicationDynamics(JobDynamics):
    """An application at a batch size. A plan can give another one, or let the job tune it: then it is the best one by what the
    job has measured, and the job measures at most every half minute. Jobs report what `models.goodput` names."""

    application: Application
    batch_size: int
    _speeds: dict[tuple[tuple[int, ...], int, int], Speed] = field(default_factory=dict, init=False, repr=False, compare=False)

    def speed(self, conditions: RunConditions) -> Speed:
        """The speed in the present epoch; of a batch size that is not tuned, computed once for each placement."""
        epoch = self.application.epoch(conditions.steps)
        if conditions.batch_size == TUNED:
            return self._tuned_speed(conditions, epoch)
        key = conditions.per_node, conditions.batch_size, epoch
        known = self._speeds.get(key)
        if known is None:
            split = self.application.split(conditions.batch_size or self.batch_size, sum(conditions.per_node))
            known = self._speeds[key] = self._speed(conditions.per_node, split, epoch)
        return known

    def _tuned_speed(self, conditions: RunConditions, epoch: int) -> Speed:
        app, per_node = self.application, conditions.per_node
        before = conditions.learned if isinstance(conditions.learned, TuningState) else TuningState()
        split = before.best(app, per_node)
        after = before.after(app, per_node, split, epoch)
        speed = replace(self._speed(per_node, split, epoch), learned=after)
        if after.best(app, per_node) == split:
            return speed
        return replace(speed, until=min(speed.until, conditions.steps + _TUNING_S * speed.rate))

    def _speed(self, per_node: tuple[int, ...], split: BatchSplit, epoch: int) -> Speed:
        app, workers = self.application, sum(per_node)
        until = float(app.ends[epoch]) if epoch < len(app.ends) - 1 else math.inf
        size = split.batch_size(workers)
        return Speed(app.rate(per_node, split, epoch), until, size, self._reports(per_node, split, epoch))

    def _reports(self, per_node: tuple[int, ...], split: BatchSplit, epoch: int) -> Mapping[str, float]:
        app, workers = self.application, sum(per_node)
        step_s, sync_s = app.curve(per_node).at(split.local)
        sqr, var = app.noise(split.batch_size(workers), epoch)
        return {
            goodput.NODES: float(len(per_node)),
            goodput.WORKERS: float(workers),
            goodput.LOCAL: float(split.local),
            goodput.COMPUTE: float(step_s - sync_s),
            goodput.STEP: float(step_s),
            goodput.SQR: float(sqr),
            goodput.VAR: float(var),
            goodput.SMALLEST: float(app.smallest),
            goodput.LARGEST: float(app.largest),
            goodput.LEAST_LOCAL: float(app.min_local),
            goodput.MOST_LOCAL: float(app.max_local),
        }


def with_applications(trace: Trace, applications: Mapping[str, Application]) -> Trace:
    """The trace with work and dynamics of each job from the application of its job type."""
    jobs, dynamics, alike = [], dict(trace.dynamics), dict[str, ApplicationDynamics]()
    for job in trace.jobs:
        app, size = applications.get(model_of(job.kind)), batch_size_of(job.kind)
        where = f"{trace.name}, job {job.name!r}"
        if app is None:
            known = near_or_all(model_of(job.kind), applications)
            raise InputError(where, f"an application that was measured ({known})", field="kind", value=job.kind)
        if size is None or not app.smallest <= size <= app.largest:
            raise InputError(where, f"a batch size from {app.smallest} to {app.largest}", field="kind", value=job.kind)
        jobs.append(replace(job, steps=app.steps, mode=job.mode if app.name in _RIGID else ELASTIC))
        dynamics[job.name] = alike.setdefault(job.kind, ApplicationDynamics(app, size))
    return replace(trace.with_jobs(jobs), dynamics=dynamics)


def application_table(trace: Trace, cluster: Cluster) -> ThroughputTable | None:
    """Mean rates over a whole run, by job type and workers on as few nodes as possible, the same on every accelerator type and
    spread or not. None where some job trains no application."""
    names, on_a_node = cluster.type_names, int(cluster.node_size.max())
    requested, trained = dict[str, int](), dict[str, ApplicationDynamics]()
    for job in trace.jobs:
        job_dynamics = trace.dynamics.get(job.name)
        if not isinstance(job_dynamics, ApplicationDynamics):
            return None
        requested[job.kind], trained[job.kind] = max(requested.get(job.kind, 0), job.workers), job_dynamics
    keys: list[tuple[str, int]] = [(TIMED, 1)]
    rates = [1.0]
    for kind, largest in requested.items():
        app, size = trained[kind].application, trained[kind].batch_size
        for workers in range(1, max(largest, min(size // app.min_local, cluster.size)) + 1):
            keys.append((kind, workers))
            rates.append(app.steps / app.run_s(consolidated_placement(workers, on_a_node), app.split(size, workers)))
    alone = np.repeat(np.array(rates)[:, None], len(names), axis=1)
    return ThroughputTable(names, tuple(keys), alone, alone, np.zeros((len(keys), len(keys), len(names))), SOURCE)
