"""A lease for PyTorch Lightning. Importable where Lightning is.

    callback = LeaseCallback()
    trainer = Trainer(callbacks=[callback], …)
    trainer.fit(model, ckpt_path=callback.checkpoint)

A step is a training batch. Lightning writes the whole checkpoint and restores its counters, so each step is done once. It does
not skip batches: if an epoch is interrupted, the rest of it gets the loader's first batches again, unless the loader keeps its
own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from fairlead.client.gang import Patience
from fairlead.client.launch_context import LaunchContext
from fairlead.client.lease_holder import LeaseHolder, SaveOptions

_FILE = "lightning.ckpt"


class LightningLeaseCallback(Callback):  # type: ignore[misc]  # Lightning need not be here when types are checked
    """`checkpoint`: where to resume, or None."""

    def __init__(
        self,
        *,
        every_steps: int = 0,
        every_s: float = 0.0,
        keep: int = 1,
        directory: Path | str | None = None,
        patience: Patience | None = None,
    ) -> None:
        super().__init__()
        # Lightning's save is called on all workers and decides itself which of them writes.
        every_rank = LaunchContext.read().in_gang
        self._holder = LeaseHolder(
            SaveOptions(self._save, every_steps, every_s, every_rank, keep, directory), patience=patience
        )
        self._trainer: Any = None
        self._left = False
        latest = self._holder.begin()
        self.checkpoint = latest.folder / _FILE if latest else None

    @property
    def yielded(self) -> bool:
        """Whether training stopped because the lease is over."""
        return self._holder.yielded

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._trainer = trainer
        if not self._holder.ready():
            self._leave()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._left and self._holder.step():
            self._leave()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._left:
            self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._holder.detach()

    def _leave(self) -> None:
        self._left = self._trainer.should_stop = True
        self._holder.leave()

    def _save(self, folder: Path) -> None:
        self._trainer.save_checkpoint(folder / _FILE)


LeaseCallback = LightningLeaseCallback  # the name that scripts use
