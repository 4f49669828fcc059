"""The part of one worker in an elastic job: how many workers there are in this launch, which samples of a batch are whose, and
what the scheduler has to hear to know how the job would do with more or fewer of them. Batch sizes are those of the whole gang
unless they are called local.

A batch is cut into as many parts as there are workers, and each worker's again into `passes`, so that no pass has more than
`most_local` samples. What is reported are medians, so that a save now and then does not count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from fairlead.client.batch_arithmetic import Noise, accumulation_steps
from fairlead.client.launch_context import LaunchContext
from fairlead.client.reporting_api import report

Batch = TypeVar("Batch", bound=Sequence[object])

WARM_UP, WINDOW = 3, 50
"""Steps that are not counted at the beginning of a launch, or of a new batch size; and how many of the last are."""

_CANDIDATES = 24


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Batch sizes with which a job can run: of the gang, and of one pass of one worker."""

    smallest: int
    largest: int
    least_local: int = 1
    most_local: int = 0  # 0: as many as there are

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest:
            raise ValueError(f"smallest={self.smallest}, largest={self.largest}: expected 1 ≤ smallest ≤ largest")
        if self.least_local < 1 or (self.most_local and self.most_local < self.least_local):
            raise ValueError(f"least_local={self.least_local}, most_local={self.most_local}: expected 1 ≤ least ≤ most")

    def passes(self, batch_size: int, workers: int) -> int:
        """So few that each worker's part of a batch fits. A worker that is alone goes twice where it can."""
        return int(accumulation_steps(batch_size, workers, self.most_local or self.largest, self.twice_above))

    @property
    def twice_above(self) -> int:
        return 2 * self.least_local - 1


class Elastic:
    def __init__(self, batch_size: int, limits: BatchLimits, clock: Callable[[], float] = time.perf_counter) -> None:
        around = LaunchContext.read()
        self.rank, self.world_size, self.nodes = around.rank, around.world_size, around.nodes
        self.limits = limits
        self.may_tune = around.tuned
        self.noise = Noise(limits.smallest)
        self._clock = clock
        self._seen: dict[int, tuple[float, float]] = {}  # by local batch: T_grad and T_step
        self._size = 0
        wanted = max(around.batch_size or batch_size, limits.smallest, self.world_size * limits.least_local)
        self.batch_size = min(wanted, limits.largest)
        if self.rank == 0:
            told = {"smallest": limits.smallest, "largest": limits.largest, "least_local": limits.least_local}
            told |= {"most_local": limits.most_local or limits.largest, "twice_above": limits.twice_above}
            report(**{f"batch.{name}": value for name, value in told.items()})

    @property
    def batch_size(self) -> int:
        return self._size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        """From the next step on, on all workers alike."""
        least, most = self.limits.smallest, self.limits.largest
        if not least <= size <= most:
            raise ValueError(f"batch_size = {size}: expected {least} to {most}")
        if size < self.world_size * self.limits.least_local:
            each = self.limits.least_local
            raise ValueError(f"batch_size = {size}: too small for {self.world_size} workers with {each} each")
        if size == self._size:
            return
        self._size = size
        self.passes = self.limits.passes(size, self.world_size)
        self._warm = 0
        self._last_s: float | None = None
        self._computed_s, self._computed = 0.0, 0
        self._took: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    @property
    def local_batch(self) -> int:
        """Samples of one worker's pass; some have one less."""
        return -(-self._size // (self.world_size * self.passes))

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """This worker's samples of a batch, pass by pass. All workers' together are the batch, each sample once."""
        count = self.world_size * self.passes
        for number in range(self.rank * self.passes, (self.rank + 1) * self.passes):
            yield batch[number * len(batch) // count : (number + 1) * len(batch) // count]  # type: ignore[misc]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around each pass, without the exchange of gradients."""
        began = self._clock()
        yield
        self._computed_s += self._clock() - began
        self._computed += 1

    def stepped(self, parts_sqr: float | None = None, whole_sqr: float | None = None) -> None:
        """At the end of each step. `parts_sqr` is the mean of the squared norms of all passes' gradients, of all workers;
        `whole_sqr` the squared norm of their mean."""
        now, before = self._clock(), self._last_s
        if before is not None and self._computed == self.passes:
            self._warm += 1
            if self._warm > WARM_UP:
                self._took.append((self._computed_s / self.passes, now - before))
        if parts_sqr is not None and whole_sqr is not None:
            self.noise.see(parts_sqr, whole_sqr, self.world_size * self.passes, self._size)
        self._last_s, self._computed_s, self._computed = now, 0.0, 0
        if self._took:
            grad_s = median(grad for grad, _ in self._took)
            step_s = max(grad_s, median(step for _, step in self._took) - (self.passes - 1) * grad_s)
            self._seen[self.local_batch] = grad_s, step_s
            self._tell(grad_s, step_s)

    def _tell(self, grad_s: float, step_s: float) -> None:
        if self.rank:
            return
        told = {"nodes": self.nodes, "workers": self.world_size, "local_batch": self.local_batch, "compute_s": grad_s}
        report(**{f"step.{name}": value for name, value in told.items()}, **{"step.s": step_s})
        if (known := self.noise.known) is not None:
            report(grad_sqr=known[0], grad_var=known[1])

    def best_batch_size(self) -> int:
        """Of which a second of this gang is worth the most, by what this launch has measured; the present one where the
        scheduler has not left it to the job, or too little is known. All workers have to change to it in the same step: let
        the first tell the others."""
        if not self.may_tune or not self._seen or self.noise.known is None:
            return self._size
        return max(self._candidates(), key=lambda size: (self._goodput(size), -size))

    def _candidates(self) -> Iterator[int]:
        """The present one, and others from the smallest that gives everybody a part to the largest."""
        yield self._size
        least = max(self.limits.smallest, self.world_size * self.limits.least_local)
        for at in range(_CANDIDATES):
            yield round(least * (self.limits.largest / least) ** (at / (_CANDIDATES - 1)))

    def _goodput(self, size: int) -> float:
        passes = self.limits.passes(size, self.world_size)
        grad_s = self._grad_s(-(-size // (self.world_size * passes)))
        exchange_s = median(step - grad for grad, step in self._seen.values())
        return self.noise.gain(size) / (passes * grad_s + exchange_s)

    def _grad_s(self, local: int) -> float:
        """On the line through what was seen; seen once, half of it is constant."""
        sizes = sorted(self._seen)
        low, high = sizes[0], sizes[-1]
        if low == high:
            return self._seen[low][0] * (1 + local / low) / 2
        slope = max(0.0, (self._seen[high][0] - self._seen[low][0]) / (high - low))
        return max(self._seen[low][0] + slope * (local - low), 1e-9)


def elastic(batch_size: int, *, smallest: int = 0, largest: int = 0, least_local: int = 1, most_local: int = 0) -> Elastic:
    """What this worker does in this launch of a job that runs with any number of workers: `batch_size` samples a step, cut
    into parts for all of them. Where `smallest` or `largest` say that it also runs with other batch sizes, the scheduler may
    give it one, or let it tune its own. A worker's pass has `least_local` to `most_local` samples."""
    return Elastic(batch_size, BatchLimits(smallest or batch_size, largest or batch_size, least_local, most_local))
