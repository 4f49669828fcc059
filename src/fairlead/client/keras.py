"""A lease for Keras 3, on TensorFlow, PyTorch or JAX. Importable where Keras is.

    callback = LeaseCallback()
    model.fit(data, epochs=10, initial_epoch=callback.initial_epoch, callbacks=[callback, …])

A step is a training batch. The callback saves the weights and the optimizer, restores them when training begins, and ends an
epoch that was interrupted after its remaining batches, so each step is done once. It does not skip batches: the rest of such an
epoch gets the first batches of the data again. It stands first in the list, so that the others can end training too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras.callbacks import Callback

from fairlead.client.gang import Patience
from fairlead.client.lease_holder import LeaseHolder, SaveOptions

_FILE = "model.weights.h5"
_EPOCH, _BEGAN, _SIZE = "epoch", "epoch_began", "epoch_size"


class KerasLeaseCallback(Callback):  # type: ignore[misc]  # Keras need not be here when types are checked
    """`initial_epoch`: the epoch in which training resumes. `checkpoint`: the weights that it resumes from, or None."""

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
        self._holder = LeaseHolder(
            SaveOptions(self._save, every_steps, every_s, keep=keep, directory=directory), patience=patience
        )
        latest, self._left, self._ends_epoch = self._holder.begin(), False, False
        self.checkpoint = latest.folder / _FILE if latest else None
        notes = self._holder.notes
        self.initial_epoch = notes.get(_EPOCH, 0)
        self._done = self._holder.steps - notes.get(_BEGAN, 0)  # batches of the present epoch, over all launches
        if 0 < notes.get(_SIZE, 0) <= self._done:
            self.initial_epoch, self._done = self.initial_epoch + 1, 0
        self._before = self._done  # of them, in earlier launches

    @property
    def yielded(self) -> bool:
        """Whether training stopped because the lease is over."""
        return self._holder.yielded

    def on_train_begin(self, logs: Any = None) -> None:
        if self._left:
            raise RuntimeError("LeaseCallback: the lease ended with the last fit(); call fit() once, with all epochs")
        if self.checkpoint is not None:
            model = self.model
            if model.optimizer is not None and not model.optimizer.built:  # its state has a place only then
                model.optimizer.build(model.trainable_variables)
            model.load_weights(self.checkpoint)
        self._holder.ready()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        size = self.params.get("steps") or 0  # None: not known before the first epoch has ended
        self._holder.notes = {_EPOCH: epoch, _BEGAN: self._holder.steps - self._done, _SIZE: size}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Several batches may be one call (`steps_per_execution`), with the number of the last one."""
        if self._left:
            return
        done = self._before + batch + 1
        self._holder.steps += done - self._done - 1
        self._done = done
        if self._holder.step():
            self._leave()
        elif self._before and done >= self._holder.notes[_SIZE] > 0:
            self._ends_epoch = self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._before = self._done = 0
        if self._ends_epoch:
            self._ends_epoch = self.model.stop_training = False

    def on_train_end(self, logs: Any = None) -> None:
        if not self._left:
            self._left = True
            self._holder.leave()

    def _leave(self) -> None:
        self._left = self.model.stop_training = True
        self._holder.leave()

    def _save(self, folder: Path) -> None:
        self.model.save_weights(folder / _FILE)


LeaseCallback = KerasLeaseCallback  # the name that scripts use
