"""Where a command may write: looked at before the work. It knows nothing else, so that a quick command stays quick."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fairlead.core.errors import InputError


def distinct(inputs: Sequence[Path | None], outputs: Sequence[Path | None], folders: Sequence[Path | None] = ()) -> None:
    """No output takes the place of an input or of another output, and each can be written: told before the work, not after."""
    seen = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        if not str(path) or str(path) == "." or path.is_dir():
            raise InputError("command line", "a file to write; a folder stands there", field="output", value=str(path))
        if path.resolve() in seen:
            raise InputError("command line", "a file that is not read or written already", field="output", value=str(path))
        seen.add(path.resolve())
        if path.is_file() or not path.exists():  # a pipe or a device is where it is
            _writable(path, path.resolve().parent)
    for folder in folders:
        if folder is not None:
            _writable(folder, folder.resolve())


def _writable(said: Path, folder: Path) -> None:
    """A folder, or what would have to be made to have it there."""
    for link in (said, *said.parents):
        if link.is_symlink() and not link.exists() and not folder.exists():
            raise InputError("command line", f"a place to write to; {link} leads nowhere", field="output", value=str(said))
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise InputError("command line", f"a place to write to; {there} is a file", field="output", value=str(said))
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError("command line", f"a place to write to; {there} may not be written", field="output", value=str(said))
