"""Code that was sent along: a zip archive, unpacked once per digest, shared by all launches that name it, and read-only.
Nothing in an archive is trusted: it may name no path outside of its directory, no links, and no more than the limits."""

from __future__ import annotations

import io
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fairlead.files import remove, sync_directory
from fairlead.runtime.agent.agent_errors import ArchiveRefused, node_errors
from fairlead.runtime.protocol.code_archive import archive_digest

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    packed_bytes: int = 256 << 20
    unpacked_bytes: int = 1 << 30
    files: int = 50_000
    path: int = 512  # characters


LIMITS = ArchiveLimits()


def is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def check_archive(archive: bytes, digest: str, limits: ArchiveLimits = LIMITS) -> None:
    """Whether `unpack` would take it: everything is looked at, nothing is written."""
    _check_whole(archive, digest, limits)
    with _readable(digest), zipfile.ZipFile(io.BytesIO(archive)) as packed:
        left = limits.unpacked_bytes
        files: set[PurePosixPath] = set()
        folders: set[PurePosixPath] = set()
        for member in _members(packed, digest, limits):
            path = _inside(member, digest, limits)
            folders.update(path.parents)
            if member.is_dir():
                folders.add(path)
                continue
            if path in files:
                raise ArchiveRefused(f"archive {_short(digest)}: '{path.name}' stands in it twice")
            files.add(path)
            with packed.open(member) as source:
                left -= sum(map(len, _chunks(source, left, digest, limits)))
        if both := files & folders:
            raise ArchiveRefused(f"archive {_short(digest)}: '{min(both).name}' stands in it twice")


def unpack(archive: bytes, digest: str, directory: Path, limits: ArchiveLimits = LIMITS) -> Path:
    """The folder `directory/digest` with what is in the archive, there whole or not at all."""
    _check_whole(archive, digest, limits)
    place = directory / digest
    if place.is_dir():
        return place
    with node_errors(directory):
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{digest[:12]}-", dir=directory))
        try:
            _unpack_into(draft, archive, digest, limits)
            _make_read_only(draft)
            os.rename(draft, place)
            sync_directory(directory)
        finally:
            if draft.exists():
                remove(draft)
    return place


def link_code(code: Path, directory: Path) -> None:
    """A job's own directory with the code in it: its files are links to the shared ones, its folders are new and writable."""
    for folder, _, names in os.walk(code):
        here = directory / Path(folder).relative_to(code)
        here.mkdir(mode=0o755, exist_ok=True)
        for name in names:
            os.link(Path(folder) / name, here / name)


def _check_whole(archive: bytes, digest: str, limits: ArchiveLimits) -> None:
    if len(archive) > limits.packed_bytes:
        raise ArchiveRefused(f"archive {_short(digest)}: {len(archive):,} bytes, at most {limits.packed_bytes:,} are taken")
    if not is_digest(digest) or archive_digest(archive) != digest:
        raise ArchiveRefused(f"archive {_short(digest)}: its SHA-256 is {archive_digest(archive)}; send it again")


@contextmanager
def _readable(digest: str) -> Iterator[None]:
    """What is wrong inside of an archive is its sender's fault."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        name = Path(str(error.filename)).name
        raise ArchiveRefused(f"archive {_short(digest)}: '{name}' stands in it twice") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ArchiveRefused(f"archive {_short(digest)}: not a zip archive that can be read: {error}") from error


def _members(packed: zipfile.ZipFile, digest: str, limits: ArchiveLimits) -> list[zipfile.ZipInfo]:
    members = packed.infolist()
    if len(members) > limits.files:
        raise ArchiveRefused(f"archive {_short(digest)}: {len(members):,} files, at most {limits.files:,} are taken")
    return members


def _unpack_into(draft: Path, archive: bytes, digest: str, limits: ArchiveLimits) -> None:
    with _readable(digest), zipfile.ZipFile(io.BytesIO(archive)) as packed:
        left = limits.unpacked_bytes
        for member in _members(packed, digest, limits):
            left -= _unpack_member(packed, member, draft, left, digest, limits)


def _unpack_member(
    packed: zipfile.ZipFile, member: zipfile.ZipInfo, draft: Path, left: int, digest: str, limits: ArchiveLimits
) -> int:
    where = draft / _inside(member, digest, limits)
    if member.is_dir():
        where.mkdir(parents=True, exist_ok=True)
        return 0
    where.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with packed.open(member) as source, open(where, "xb") as target:
        for chunk in _chunks(source, left, digest, limits):
            size += target.write(chunk)
    runs = (member.external_attr >> 16) & 0o111
    os.chmod(where, 0o755 if runs else 0o644)
    return size


def _chunks(source: IO[bytes], left: int, digest: str, limits: ArchiveLimits) -> Iterator[bytes]:
    """What is in a member. What an archive says about sizes may be a lie: what comes out is counted."""
    while chunk := source.read(_CHUNK):
        left -= len(chunk)
        if left < 0:
            raise ArchiveRefused(f"archive {_short(digest)}: more than {limits.unpacked_bytes:,} bytes when unpacked")
        yield chunk


def _inside(member: zipfile.ZipInfo, digest: str, limits: ArchiveLimits) -> PurePosixPath:
    name = member.filename
    path = PurePosixPath(name)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveRefused(f"archive {_short(digest)}: '{name}' is a link or a device; only files and folders are taken")
    escapes = path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts
    if escapes or len(name) > limits.path or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise ArchiveRefused(f"archive {_short(digest)}: '{name[:80]}' is not a path inside of the archive")
    return path


def _make_read_only(directory: Path) -> None:
    for folder, _, names in os.walk(directory, topdown=False):
        for name in names:
            path = os.path.join(folder, name)
            os.chmod(path, 0o555 if os.stat(path).st_mode & 0o100 else 0o444)
        os.chmod(folder, 0o555)


def _short(digest: str) -> str:
    return digest[:12] or "without a digest"
