"""The lease around a training loop: `for batch in lease(loader, load=…, save=…)`. It walks the loader, epoch after epoch, from
where the last launch stopped to the last step of all, and stops in between when the lease is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from fairlead.client.gang import Patience
from fairlead.client.lease_holder import Holder, Save, Saving

Batch = TypeVar("Batch")
Load: TypeAlias = Callable[[Path], object]

EPOCH, EPOCH_BEGAN = "epoch", "epoch_began"


class Lease(Generic[Batch]):
    """An iterable to walk once. `yielded`: it stopped because the lease is over; the next launch goes on from there."""

    def __init__(self, loader: Iterable[Batch], holder: Holder, load: Load | None, epochs: int | None) -> None:
        self.epoch = 0
        self._loader = loader
        self._holder = holder
        self._load = load
        self._epochs = epochs
        self._walked = False
        size = getattr(loader, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            holder.batch_size = size

    @property
    def yielded(self) -> bool:
        return self._holder.yielded

    @property
    def steps(self) -> int:
        """Done since the job began, over all its launches. The step under way is not among them."""
        return self._holder.steps

    @property
    def batch_size(self) -> int:
        """What the scheduler knows; set it when it changes."""
        return self._holder.batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self._holder.batch_size = size

    def exit_if_yielded(self) -> None:
        """End the script with status 0 where the lease is over, so that what follows the loop is done once, after the last
        step."""
        if self.yielded:
            sys.exit(0)

    def __iter__(self) -> Iterator[Batch]:
        if self._walked:
            raise RuntimeError("a lease is walked once: say epochs= instead of a loop around it")
        self._walked = True
        return self._walk()

    def _walk(self) -> Iterator[Batch]:
        holder = self._holder
        checkpoint = holder.begin()
        placed = checkpoint is not None and self._load is not None and self._load(checkpoint.folder) is True
        began = holder.notes.get(EPOCH_BEGAN, 0)
        skip = 0 if placed else holder.steps - began
        if not holder.ready():
            holder.leave()
            return
        try:
            for self.epoch in count(holder.notes.get(EPOCH, 0)):
                if self.epoch == self._epochs:
                    break
                holder.notes = {EPOCH: self.epoch, EPOCH_BEGAN: began}
                for batch in self._batches(skip):
                    yield batch
                    if holder.step():
                        holder.leave()
                        return
                if holder.steps == began and (self._epochs is None or self.epoch):
                    raise ValueError(
                        f"the loader gave nothing in epoch {self.epoch}, after {began} steps: can it be walked again?"
                    )
                began, skip = holder.steps, 0
        except GeneratorExit:
            holder.detach()
            raise
        holder.leave()

    def _batches(self, skip: int) -> Iterator[Batch]:
        """One epoch. Loaders and samplers that shuffle by epoch are told which it is."""
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            if callable(told := getattr(part, "set_epoch", None)):
                told(self.epoch)
        batches = iter(self._loader)
        return islice(batches, skip, None) if skip else batches


def lease(
    loader: Iterable[Batch],
    *,
    load: Load | None = None,
    save: Save | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    every_steps: int = 0,
    every_s: float = 0.0,
    every_rank: bool = False,
    keep: int = 1,
    directory: Path | str | None = None,
    patience: Patience | None = None,
) -> Lease[Batch]:
    """Walk a loader under a lease, to the end of `epochs` or of `steps`, whichever is first; one epoch where neither is said.

    `save(folder)` writes a checkpoint's files to a folder, `load(folder)` reads them; neither need care about the position,
    nor about crashes. A loader begins anew in each launch and is walked to its place, batch by batch, unless `load` returns
    True to say that it has put the loader there itself. Without `save` every launch begins at the first step.

    Besides when it leaves, it saves at multiples of `every_steps` and after `every_s` seconds. Checkpoints go where Fairlead
    says, or to `directory` outside of it. In a gang the first worker saves, or with `every_rank` all do, to one folder."""
    if epochs is None and steps is None:
        epochs = 1
    saving = Saving(save, every_steps, every_s, every_rank, keep, directory)
    return Lease(loader, Holder(saving, total=steps, patience=patience), load, epochs)
