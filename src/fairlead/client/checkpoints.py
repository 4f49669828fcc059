"""Checkpoints in a directory that outlives launches. Each is a folder that exists complete or not at all, even if the machine
crashes: a draft is written, everything in it is synced to disk, its small state file last, and then it gets its name.

    step-120/             complete, made after step 120
        fairlead.json     the position; a folder without it is not a checkpoint
        …                 the files of the script
    draft-step-180/       being written, or left by a crash"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_STATE = "fairlead.json"
_DRAFT = "draft-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    folder: Path
    steps: int  # done since the job began
    notes: Mapping[str, int]  # what else is needed to resume, such as the epoch


class Checkpoints:
    """The checkpoints of a job. A folder's name is `prefix` and the number of steps; the last `keep` stay."""

    def __init__(self, directory: Path, *, keep: int = 1, prefix: str = "step-") -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: expected 1 or more")
        self.directory = directory
        self._keep = keep
        self._prefix = prefix

    def latest(self) -> Checkpoint | None:
        """The most recent checkpoint."""
        return next(self._newest_first(), None)

    def at(self, steps: int) -> Checkpoint | None:
        """The checkpoint after a step."""
        return self._read(self.directory / f"{self._prefix}{steps}")

    def draft(self, steps: int) -> Path:
        """A folder to write to; all workers of a gang get the same one."""
        folder = self.directory / f"{_DRAFT}{self._prefix}{steps}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def complete(self, draft: Path, steps: int, notes: Mapping[str, int]) -> Checkpoint:
        """Make a draft the latest checkpoint, and remove old ones."""
        made = self.adopt(draft, steps, notes)
        folder = self.directory / f"{self._prefix}{steps}"
        self._discard(folder)
        os.replace(draft, folder)
        _fsync(self.directory)
        for old in list(self._newest_first())[self._keep :]:
            self._discard(old.folder)
        return Checkpoint(folder, made.steps, made.notes)

    def adopt(self, folder: Path, steps: int, notes: Mapping[str, int]) -> Checkpoint:
        """Make a checkpoint of a folder that another library has written and named."""
        fsync_all(folder)
        state = folder / _STATE
        draft = folder / (_STATE + ".new")
        draft.write_text(json.dumps({"steps": steps, **notes}))
        _fsync(draft)
        os.replace(draft, state)
        _fsync(folder)
        return Checkpoint(folder, steps, notes)

    def clear_drafts(self) -> None:
        """Remove what a crash left; only at the start of a launch, when no worker writes."""
        for draft in self.directory.glob(f"{_DRAFT}*"):
            shutil.rmtree(draft, ignore_errors=True)

    def _newest_first(self) -> Iterator[Checkpoint]:
        names = (folder.name.removeprefix(self._prefix) for folder in self.directory.glob(f"{self._prefix}*"))
        for steps in sorted((int(name) for name in names if name.isdecimal()), reverse=True):
            if (checkpoint := self.at(steps)) is not None:
                yield checkpoint

    def _read(self, folder: Path) -> Checkpoint | None:
        try:
            state = json.loads((folder / _STATE).read_text())
            return Checkpoint(folder, int(state.pop("steps")), {name: int(value) for name, value in state.items()})
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return None

    def _discard(self, folder: Path) -> None:
        """Rename it first, so that a half-removed folder is never taken for a checkpoint."""
        if folder.exists():
            going = self.directory / f"{_DRAFT}gone-{folder.name}"
            shutil.rmtree(going, ignore_errors=True)
            os.replace(folder, going)
            shutil.rmtree(going, ignore_errors=True)  # the next launch removes what is left


def fsync_all(folder: Path) -> None:
    """Sync a folder to disk, except what another worker removes meanwhile."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in (*files, ""):
            with contextlib.suppress(FileNotFoundError):
                _fsync(Path(path, name))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
