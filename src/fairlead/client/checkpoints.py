"""Checkpoints in a directory that outlives launches. Each is a folder, there whole or not at all, whatever moment the machine
stops in: a draft is written, everything in it is forced to disk, its small state file last, and then it gets its name.

    step-120/             whole, made after step 120
        fairlead.json     the position; without it a folder is no checkpoint
        …                 what the script wrote
    draft-step-180/       being written, or left by a crash"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STATE = "fairlead.json"
DRAFT = "draft-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    steps: int  # done since the job began
    notes: Mapping[str, int]  # what else is needed to go on, such as the epoch


class Checkpoints:
    """`prefix` and the number of steps make a folder's name."""

    def __init__(self, directory: Path, *, keep: int = 1, prefix: str = "step-") -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the last checkpoint must stay")
        self.directory = directory
        self._keep = keep
        self._prefix = prefix

    def latest(self) -> Checkpoint | None:
        return next(self._newest_first(), None)

    def at(self, steps: int) -> Checkpoint | None:
        return self._read(self.directory / f"{self._prefix}{steps}")

    def draft(self, steps: int) -> Path:
        """A folder to write to. The workers of a gang get the same one."""
        folder = self.directory / f"{DRAFT}{self._prefix}{steps}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def complete(self, draft: Path, steps: int, notes: Mapping[str, int]) -> Checkpoint:
        """The draft becomes the latest checkpoint, and older ones go."""
        made = self.adopt(draft, steps, notes)
        whole = self.directory / f"{self._prefix}{steps}"
        self._discard(whole)
        os.replace(draft, whole)
        sync(self.directory)
        for old in list(self._newest_first())[self._keep :]:
            self._discard(old.folder)
        return Checkpoint(whole, made.steps, made.notes)

    def adopt(self, folder: Path, steps: int, notes: Mapping[str, int]) -> Checkpoint:
        """Make a checkpoint of a folder that somebody else has written and named."""
        sync_all(folder)
        state = folder / STATE
        draft = folder / (STATE + ".new")
        draft.write_text(json.dumps({"steps": steps, **notes}))
        sync(draft)
        os.replace(draft, state)
        sync(folder)
        return Checkpoint(folder, steps, notes)

    def clear_drafts(self) -> None:
        """Remove what a crash left. Only while nobody writes: when a launch begins."""
        for draft in self.directory.glob(f"{DRAFT}*"):
            shutil.rmtree(draft, ignore_errors=True)

    def _newest_first(self) -> Iterator[Checkpoint]:
        names = (folder.name.removeprefix(self._prefix) for folder in self.directory.glob(f"{self._prefix}*"))
        for steps in sorted((int(name) for name in names if name.isdecimal()), reverse=True):
            if (checkpoint := self.at(steps)) is not None:
                yield checkpoint

    def _read(self, folder: Path) -> Checkpoint | None:
        try:
            state = json.loads((folder / STATE).read_text())
            return Checkpoint(folder, int(state.pop("steps")), {name: int(value) for name, value in state.items()})
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return None

    def _discard(self, folder: Path) -> None:
        """It loses its name first, so that half of it is never taken for the whole."""
        if folder.exists():
            going = self.directory / f"{DRAFT}gone-{folder.name}"
            shutil.rmtree(going, ignore_errors=True)
            os.replace(folder, going)
            shutil.rmtree(going, ignore_errors=True)  # what is left of it goes when the next launch begins


def sync_all(folder: Path) -> None:
    """Everything in a folder, but for what another worker takes away meanwhile."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in (*files, ""):
            with contextlib.suppress(FileNotFoundError):
                sync(Path(path, name))


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
