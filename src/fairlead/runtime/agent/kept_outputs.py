"""Files that a job declares as outputs: copied when its command has ended, and read in pieces later. Standard library only: the
shim copies, with the rights of the job's user for reading; the agent reads. Links are not followed, nor paths out of the job's
directory."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

MAX_BYTES = 1 << 30
"""Bytes of all outputs of one launch."""

MAX_FILES = 1000

_SHOWN = 10  # names in the message that a pattern matches nothing

DIRECTORY, _LIST = "outputs", "list.json"

_COPY = 1 << 20
_MAX_LIST = 16 << 20  # bytes of the list: its paths have at most 4096 each


def keep_outputs(directory: str, patterns: list[str], place: Path, as_user: Callable[[], AbstractContextManager[None]]) -> None:
    """Copy the files of a directory that match patterns to `place`, with a list of them and of what was left out and why; also
    of patterns that match nothing."""
    place.mkdir(mode=0o700, exist_ok=True)
    files: list[dict[str, object]] = []
    left_out: list[dict[str, str]] = []
    left = MAX_BYTES
    with as_user():
        matching = {pattern: set(_matching(directory, pattern)) for pattern in patterns}
        _, folders, plain = next(os.walk(directory), ("", [], []))  # the job may have removed or closed it
        names = [name.encode(errors="replace").decode() for name in sorted(folders + plain)]
    there = ", ".join(names[:_SHOWN] + ["…"] * (len(names) > _SHOWN)) or "no files"
    for path in sorted(set().union(*matching.values())):
        if len(files) >= MAX_FILES:
            left_out.append({"path": path, "why": f"more than {MAX_FILES:,} files"})
            break
        try:
            if not path.isprintable():
                raise OSError(0, "its name is not printable")
            with as_user():
                source = _open_inside(directory, path)
            try:
                size = _copy(source, place / str(len(files)), left)
            finally:
                os.close(source)
        except OSError as error:
            left_out.append({"path": path.encode(errors="replace").decode(), "why": error.strerror or str(error)})
            continue
        files.append({"path": path, "size": size})
        left -= size
    nothing = f"nothing matches it; the job's directory has {there}"
    left_out += [{"path": pattern, "why": nothing} for pattern, paths in matching.items() if not paths]
    (place / _LIST).write_text(json.dumps({"files": files, "left_out": left_out}))


def _matching(directory: str, pattern: str) -> Iterator[str]:
    """Relative paths of the plain files that a pattern matches; a folder means all files in it."""
    for path in _paths(directory, re.sub(r"(?<![^/])\*\*/+(?=\*\*(/|$))", "", pattern.rstrip("/")).split("/")):
        whole = os.path.join(directory, path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            for folder, _, names in os.walk(whole):
                yield from (os.path.relpath(os.path.join(folder, name), directory) for name in names)
        else:
            yield os.path.normpath(path)


def _paths(directory: str, parts: list[str]) -> Iterator[str]:
    """Relative paths that match a pattern. `**` enters no links, of which two to a folder above would never end."""
    if "**" not in parts:
        yield from glob.iglob("/".join(parts), root_dir=directory)
        return
    at = parts.index("**")
    for base in glob.iglob("/".join(parts[:at]), root_dir=directory) if at else [""]:
        for folder, folders, _ in os.walk(os.path.join(directory, base)):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in _paths(folder, parts[at + 1 :] or ["*"]):
                yield os.path.join(os.path.relpath(folder, directory), path)


def _open_inside(directory: str, path: str) -> int:
    """Open a plain file below a directory; no part of its path may be a link."""
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = Path(path).parts
        if Path(path).is_absolute() or ".." in folders or name == "..":
            raise OSError(0, "outside the job's directory")
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
        if stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
            raise OSError(0, "a link")
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "not a plain file")
    return file


def _copy(source: int, target: Path, limit: int) -> int:
    """Copy a file of at most `limit` bytes, which may still grow; return its size."""
    written = 0
    try:
        if os.fstat(source).st_size > limit:
            raise OSError(0, f"the outputs of a job have at most {MAX_BYTES:,} bytes")
        with open(target, "wb") as file:
            while data := os.read(source, _COPY):
                written += len(data)
                if written > limit:
                    raise OSError(0, f"the outputs of a job have at most {MAX_BYTES:,} bytes")
                file.write(data)
    except OSError:
        target.unlink(missing_ok=True)
        raise
    return written


def read_output(place: Path, path: str, offset: int, limit: int) -> bytes:
    """Return a piece of a kept file, or of the list of them for an empty path. Raises `OSError` or `ValueError`: it was not
    kept, or the list is damaged."""
    name = _LIST
    if path:
        try:
            listed = [file["path"] for file in json.loads(_read(place / _LIST, 0, _MAX_LIST))["files"]]
        except (KeyError, TypeError, RecursionError):
            raise ValueError("the list of outputs is damaged") from None
        if path not in listed:
            raise FileNotFoundError(path)
        name = str(listed.index(path))
    return _read(place / name, offset, limit)


def _read(path: Path, offset: int, limit: int) -> bytes:
    """A piece of a plain file; a pipe does not block."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(file, limit, min(max(0, offset), MAX_BYTES))
    finally:
        os.close(file)


@contextlib.contextmanager
def with_rights_of(user: list[int]) -> Iterator[None]:
    """Act with the ids of a user, its group and its other groups; empty: with one's own."""
    if not user:
        yield
        return
    groups = os.getgroups()
    os.setgroups(user[2:])
    os.setegid(user[1])
    os.seteuid(user[0])
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(os.getgid())
        os.setgroups(groups)
