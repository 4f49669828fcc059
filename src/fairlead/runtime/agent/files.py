"""Files that are there whole or not at all, whatever fails meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any


def make_folder(path: Path, mode: int) -> None:
    """With that mode, whatever the umask; one that is there already is left as it is."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)  # somebody else may just have made it
        os.chmod(path, mode)


def write_whole(path: Path, data: bytes) -> None:
    """Durable when it returns."""
    draft = path.with_name(path.name + ".new")
    try:
        with open(draft, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync_directory(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_json(path: Path, value: object) -> None:
    write_whole(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any:
    """None where there is no such file, or not a whole one."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(directory: Path) -> None:
    """All of it, also what was made read-only."""
    with contextlib.suppress(OSError):
        for _, _, _, folder in os.fwalk(directory):  # by descriptor: a job may have put links among its folders
            os.fchmod(folder, 0o700)
    shutil.rmtree(directory, ignore_errors=True)


def remove_empty(*directories: Path) -> None:
    """Those in which nothing is; the others stay."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()
