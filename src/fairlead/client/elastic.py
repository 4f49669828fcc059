"""One worker's part of an elastic job: the number of workers of this launch, the worker's samples of each batch, and the
reports from which the scheduler predicts the job's speed with more or fewer workers. Batch sizes are those of the whole gang
unless they are called local.

A batch is split among the workers, and each worker's part into accumulation steps of at most `max_local` samples. Reported
times are medians, so that an occasional save does not count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from fairlead.client.batch_arithmetic import GradientNoise, accumulation_steps
from fairlead.client.launch_context import LaunchContext
from fairlead.client.metric_reports import report

Batch = TypeVar("Batch", bound=Sequence[object])

WARM_UP, WINDOW = 3, 50
"""Steps that do not count after a start or a change of the batch size; and how many of the last steps count."""

_CANDIDATES = 24


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Batch sizes with which a job can run: of the gang, and of one accumulation step of one worker."""

    smallest: int
    largest: int
    min_local: int = 1
    max_local: int = 0  # 0: no limit

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest:
            raise ValueError(f"smallest={self.smallest}, largest={self.largest}: expected 1 ≤ smallest ≤ largest")
        if self.min_local < 1 or (self.max_local and self.max_local < self.min_local):
            raise ValueError(f"min_local={self.min_local}, max_local={self.max_local}: expected 1 ≤ min_local ≤ max_local")

    def accumulation_steps(self, batch_size: int, workers: int) -> int:
        """The fewest with which each worker's part of a batch fits; a single worker takes two where it can."""
        return int(accumulation_steps(batch_size, workers, self.max_local or self.largest, self.twice_above))

    @property
    def twice_above(self) -> int:
        """The batch size above which a single worker takes two accumulation steps."""
        return 2 * self.min_local - 1


class Elastic:
    """The work of this worker in this launch."""

    def __init__(self, batch_size: int, limits: BatchLimits, clock: Callable[[], float] = time.perf_counter) -> None:
        context = LaunchContext.read()
        self.rank, self.world_size, self.nodes = context.rank, context.world_size, context.nodes
        self.limits = limits
        self.may_tune = context.tuned
        self.noise = GradientNoise(limits.smallest)
        self._clock = clock
        self._measured: dict[int, tuple[float, float]] = {}  # by local batch: T_grad and T_step
        self._size = 0
        wanted = max(context.batch_size or batch_size, limits.smallest, self.world_size * limits.min_local)
        self.batch_size = min(wanted, limits.largest)
        if self.rank == 0:
            values = {"smallest": limits.smallest, "largest": limits.largest, "least_local": limits.min_local}
            values |= {"most_local": limits.max_local or limits.largest, "twice_above": limits.twice_above}
            report(**{f"batch.{name}": value for name, value in values.items()})

    @property
    def batch_size(self) -> int:
        """Samples of a step of the whole gang; to be set on all workers alike, from the next step on."""
        return self._size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        low, high = self.limits.smallest, self.limits.largest
        if not low <= size <= high:
            raise ValueError(f"batch_size = {size}: expected {low} to {high}")
        if size < self.world_size * self.limits.min_local:
            each = self.limits.min_local
            raise ValueError(f"batch_size = {size}: too small for {self.world_size} workers with {each} each")
        if size == self._size:
            return
        self._size = size
        self.accumulation_steps = self.limits.accumulation_steps(size, self.world_size)
        self._warm = 0
        self._last_s: float | None = None
        self._computed_s, self._computed = 0.0, 0
        self._took: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    @property
    def passes(self) -> int:
        """The former name of `accumulation_steps`."""
        return self.accumulation_steps

    @property
    def local_batch(self) -> int:
        """Samples of one accumulation step; some have one less."""
        return -(-self._size // (self.world_size * self.accumulation_steps))

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """This worker's samples of a batch, one part per accumulation step. All workers' parts make up the batch."""
        count = self.world_size * self.accumulation_steps
        for number in range(self.rank * self.accumulation_steps, (self.rank + 1) * self.accumulation_steps):
            yield batch[number * len(batch) // count : (number + 1) * len(batch) // count]  # type: ignore[misc]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context for each accumulation step, without the exchange of gradients."""
        began = self._clock()
        yield
        self._computed_s += self._clock() - began
        self._computed += 1

    def stepped(self, parts_sqr: float | None = None, whole_sqr: float | None = None) -> None:
        """To be called at the end of each step. `parts_sqr` is the mean of the squared gradient norms of all accumulation steps
        of all workers; `whole_sqr` is the squared norm of their mean."""
        now, before = self._clock(), self._last_s
        if before is not None and self._computed == self.accumulation_steps:
            self._warm += 1
            if self._warm > WARM_UP:
                self._took.append((self._computed_s / self.accumulation_steps, now - before))
        if parts_sqr is not None and whole_sqr is not None:
            self.noise.update(parts_sqr, whole_sqr, self.world_size * self.accumulation_steps, self._size)
        self._last_s, self._computed_s, self._computed = now, 0.0, 0
        if self._took:
            grad_s = median(grad for grad, _ in self._took)
            step_s = max(grad_s, median(step for _, step in self._took) - (self.accumulation_steps - 1) * grad_s)
            self._measured[self.local_batch] = grad_s, step_s
            self._report(grad_s, step_s)

    def _report(self, grad_s: float, step_s: float) -> None:
        if self.rank:
            return
        values = {"nodes": self.nodes, "workers": self.world_size, "local_batch": self.local_batch, "compute_s": grad_s}
        report(**{f"step.{name}": value for name, value in values.items()}, **{"step.s": step_s})
        if (noise := self.noise.estimate) is not None:
            report(grad_sqr=noise[0], grad_var=noise[1])

    def best_batch_size(self) -> int:
        """The batch size with the highest goodput of this gang, by the measurements of this launch. It is the current one if
        the scheduler does not let the job tune it, or too little is measured. All workers must change in the same step: let the
        first worker broadcast it."""
        if not self.may_tune or not self._measured or self.noise.estimate is None:
            return self._size
        return max(self._candidates(), key=lambda size: (self._goodput(size), -size))

    def _candidates(self) -> Iterator[int]:
        """The current one, and others from the smallest that gives every worker a part to the largest."""
        yield self._size
        least = max(self.limits.smallest, self.world_size * self.limits.min_local)
        for at in range(_CANDIDATES):
            yield round(least * (self.limits.largest / least) ** (at / (_CANDIDATES - 1)))

    def _goodput(self, size: int) -> float:
        accumulation = self.limits.accumulation_steps(size, self.world_size)
        grad_s = self._grad_s(-(-size // (self.world_size * accumulation)))
        exchange_s = median(step - grad for grad, step in self._measured.values())
        return self.noise.gain(size) / (accumulation * grad_s + exchange_s)

    def _grad_s(self, local: int) -> float:
        """On the line through the measurements; with one measurement, half of it is constant."""
        sizes = sorted(self._measured)
        low, high = sizes[0], sizes[-1]
        if low == high:
            return self._measured[low][0] * (1 + local / low) / 2
        slope = max(0.0, (self._measured[high][0] - self._measured[low][0]) / (high - low))
        return max(self._measured[low][0] + slope * (local - low), 1e-9)


def elastic(
    batch_size: int,
    *,
    smallest: int = 0,
    largest: int = 0,
    min_local: int = 1,
    max_local: int = 0,
    least_local: int | None = None,
    most_local: int | None = None,
) -> Elastic:
    """The work of this worker in a job that runs with any number of workers: `batch_size` samples a step, split among them.

    With `smallest` or `largest` the job also runs with other batch sizes: the scheduler may assign one, or let the job tune it.
    An accumulation step has `min_local` to `max_local` samples; `least_local` and `most_local` are their former names.
    """
    low, high = min_local if least_local is None else least_local, max_local if most_local is None else most_local
    return Elastic(batch_size, BatchLimits(smallest or batch_size, largest or batch_size, low, high))
