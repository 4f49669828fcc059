"""Files that are complete or absent: atomic writes, durable where asked, and checks on paths that never end.

Every module that writes a file for users or for recovery goes through here. It knows no format and no command."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

before_write: Callable[[Path], None] = lambda path: None  # noqa: E731 - a simulation of disk faults replaces it


def is_stream(path: Path | str) -> bool:
    """Return whether `path` is a pipe or a device, which may never end. Folders and missing files are not streams."""
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def atomic_write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace the file at `path` with `content`, or leave it as it was.

    Args:
        path: Where to write. A link is followed; a pipe or a device is written directly.
        content: The whole content.
        private: Make the file readable by its owner only, and durable (synced with its folder) on return.

    Raises:
        OSError: The file could not be written; the error names `path`, not the temporary file.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if is_stream(path):
            path.write_bytes(content)
            return
        try:
            before_write(target)
            with open(draft, "wb") as file:
                if private:
                    os.fchmod(file.fileno(), 0o600)
                file.write(content)
                if private:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(draft, target)
            if private:
                sync_directory(target.parent)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from None


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON, private and durable."""
    atomic_write(path, json.dumps(value, indent=1).encode() + b"\n", private=True)


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; None if the file is missing or incomplete."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def finite_or_none(value: float) -> float | None:
    """A number as JSON can have it: None for infinity and NaN."""
    return value if math.isfinite(value) else None


def make_folder(path: Path, mode: int) -> None:
    """Create a folder with exactly this mode, whatever the umask. An existing folder is left as it is."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)  # another process may have made it meanwhile
        os.chmod(path, mode)


def sync_directory(path: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(directory: Path) -> None:
    """Remove a folder and everything in it, also what was made read-only."""
    with contextlib.suppress(OSError):
        for _, _, _, folder in os.fwalk(directory):  # by descriptor: a job may have put links among its folders
            os.fchmod(folder, 0o700)
    shutil.rmtree(directory, ignore_errors=True)


def remove_empty(*directories: Path) -> None:
    """Remove those of the folders that are empty."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def why_unsafe(file: Path) -> str:
    """Return how another user may have written a file that says where to send requests; empty if only this user can."""
    try:
        for path in (file.parent, file):
            about = path.stat()
            if about.st_uid not in (os.geteuid(), 0):
                return f"{path} belongs to another user"
            if about.st_mode & 0o022:
                return f"other users can write {path} (chmod go-w)"
    except OSError as problem:
        return f"{file} cannot be read ({problem.strerror})"
    return ""
