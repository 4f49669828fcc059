"""The lease around a training loop: `for batch in lease(loader, load=…, save=…)`. It iterates over the loader, epoch after
epoch, from where the last launch stopped to the last step, and stops when the lease is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from fairlead.client.gang import Patience
from fairlead.client.lease_holder import LeaseHolder, Save, SaveOptions

Batch = TypeVar("Batch")
Load: TypeAlias = Callable[[Path], object]

_EPOCH, _EPOCH_BEGAN = "epoch", "epoch_began"


class Lease(Generic[Batch]):
    """An iterable over batches, to be used once. `yielded`: it stopped because the lease is over; the next launch resumes
    there."""

    def __init__(self, loader: Iterable[Batch], holder: LeaseHolder, load: Load | None, epochs: int | None) -> None:
        self.epoch = 0
        self._loader = loader
        self._holder = holder
        self._load = load
        self._epochs = epochs
        self._used = False
        size = getattr(loader, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            holder.batch_size = size

    @property
    def yielded(self) -> bool:
        """Whether it stopped because the lease is over."""
        return self._holder.yielded

    @property
    def steps(self) -> int:
        """Completed steps of the job, over all its launches."""
        return self._holder.steps

    @property
    def batch_size(self) -> int:
        """The batch size that the scheduler knows; set it when it changes."""
        return self._holder.batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self._holder.batch_size = size

    def exit_if_yielded(self) -> None:
        """End the script with status 0 if the lease is over, so that code after the loop runs only after the last step."""
        if self.yielded:
            sys.exit(0)

    def __iter__(self) -> Iterator[Batch]:
        if self._used:
            raise RuntimeError("a lease can be iterated once: use epochs= instead of a loop around it")
        self._used = True
        return self._iterate()

    def _iterate(self) -> Iterator[Batch]:
        holder = self._holder
        checkpoint = holder.begin()
        placed = checkpoint is not None and self._load is not None and self._load(checkpoint.folder) is True
        began = holder.notes.get(_EPOCH_BEGAN, 0)
        skip = 0 if placed else holder.steps - began
        if not holder.ready():
            holder.leave()
            return
        try:
            for self.epoch in count(holder.notes.get(_EPOCH, 0)):
                if self.epoch == self._epochs:
                    break
                holder.notes = {_EPOCH: self.epoch, _EPOCH_BEGAN: began}
                for batch in self._batches(skip):
                    yield batch
                    if holder.step():
                        holder.leave()
                        return
                if holder.yielded:
                    break
                if holder.steps == began and (self._epochs is None or self.epoch):
                    raise ValueError(
                        f"the loader returned no batch in epoch {self.epoch}, after {began} steps: can it be iterated again?"
                    )
                began, skip = holder.steps, 0
        except GeneratorExit:
            holder.detach()
            raise
        holder.leave()

    def _batches(self, skip: int) -> Iterator[Batch]:
        """One epoch. Loaders and samplers that shuffle by epoch get its number."""
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self.epoch)
        batches = iter(self._loader)
        self._holder.loader_started()
        try:
            yield from islice(batches, skip, None) if skip else batches
        except RuntimeError:  # of PyTorch: its processes got the signal that ends the lease
            if not self._holder.loader_failed():
                raise


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
    """Iterate over a loader under a lease, until `epochs` or `steps` are done, whichever is first; the default is one epoch.

    `save(folder)` writes a checkpoint's files to a folder and `load(folder)` reads them; Fairlead handles the position and
    crashes. In each launch the loader starts again and skips the batches that are done, unless `load` returns True because it
    has positioned the loader itself. Without `save` every launch starts at the first step.

    It saves when it leaves, at multiples of `every_steps`, and after `every_s` seconds. Checkpoints go to Fairlead's directory,
    or to `directory` outside Fairlead. In a gang the first worker saves; with `every_rank` all workers do, to one folder.
    """
    if epochs is None and steps is None:
        epochs = 1
    saving = SaveOptions(save, every_steps, every_s, every_rank, keep, directory)
    return Lease(loader, LeaseHolder(saving, total=steps, patience=patience), load, epochs)
