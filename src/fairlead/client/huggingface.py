"""A lease for the Trainer of Hugging Face. Importable where `transformers` is.

    callback = LeaseCallback()
    trainer = Trainer(args=TrainingArguments(output_dir=str(callback.directory), …), callbacks=[callback], …)
    trainer.train(resume_from_checkpoint=callback.checkpoint)

The trainer saves under its own names, when it leaves and by its own rules; a checkpoint counts once it is complete on disk. A
step is an update of the weights. The trainer skips the batches that are done when it resumes, so each batch is used once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from fairlead.client.gang import Patience
from fairlead.client.launch_context import LaunchContext
from fairlead.client.lease_holder import LeaseHolder, SaveOptions


class HuggingFaceLeaseCallback(TrainerCallback):  # type: ignore[misc]  # transformers need not be here when types are checked
    """`directory`: the `output_dir` to use. `checkpoint`: where to resume, or None."""

    def __init__(self, *, directory: Path | str = "checkpoints", patience: Patience | None = None) -> None:
        self.directory = Path(LaunchContext.read().checkpoints or directory)
        self._holder = LeaseHolder(SaveOptions(directory=self.directory, prefix="checkpoint-"), patience=patience)
        latest = self._holder.begin()
        self.checkpoint = str(latest.folder) if latest else None

    @property
    def yielded(self) -> bool:
        """Whether training stopped because the lease is over."""
        return self._holder.yielded

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not self._holder.ready():
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._holder.step():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._holder.adopt(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._holder.leave()


LeaseCallback = HuggingFaceLeaseCallback  # the name that scripts use
