"""Code that is sent along with a job, as a zip archive: packing, checking and unpacking. The same files give the same bytes, so
that an archive is sent only once. An archive is not trusted: it may contain no path outside its directory, no links, and no
more than the limits. This module knows neither jobs nor connections."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fairlead.core.errors import FairleadError, InputError, require
from fairlead.files import remove, sync_directory

CHUNK_BYTES = 256 << 10  # bytes of an archive or a log in one message, so that heartbeats do not wait long behind them
_EXCLUDED = frozenset({".git", ".hg", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".fairlead"})
_MAX_BYTES, _MAX_FILES = 64 << 20, 50_000
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 16
_PRIVATE_KEY = b"PRIVATE KEY-----"  # near the beginning of a PEM file


class ArchiveRefused(FairleadError):
    """A code archive that does not match its digest, is damaged, or exceeds the limits."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The largest archive that is accepted."""

    packed_bytes: int = 256 << 20
    unpacked_bytes: int = 1 << 30
    files: int = 50_000
    path: int = 512  # characters


_LIMITS = ArchiveLimits()


def archive_digest(archive: bytes) -> str:
    """The SHA-256 by which an archive is identified."""
    return hashlib.sha256(archive).hexdigest()


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def pack_code(place: Path, on_secret: Callable[[Path], None] = lambda path: None) -> bytes:
    """A zip file as it is, or a directory packed without caches, repositories, private keys and `*.token` (each of these two is
    passed to `on_secret`). Links to files are followed, links to folders are not."""
    if place.is_file():
        archive = place.read_bytes()
        require(zipfile.is_zipfile(io.BytesIO(archive)), place, "a directory, or a zip file", "code")
    elif place.is_dir():
        archive = _packed(place, on_secret)
    else:
        raise InputError(place, "an existing directory or zip file", field="code")
    if len(archive) > _MAX_BYTES:
        raise InputError(
            place, f"at most {_MAX_BYTES:,} bytes when packed; data belongs on the nodes", value=f"{len(archive):,}"
        )
    return archive


def _packed(folder: Path, on_secret: Callable[[Path], None]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for count, path in enumerate(_files(folder)):
            if count >= _MAX_FILES or packed.tell() > _MAX_BYTES:
                raise InputError(folder, f"at most {_MAX_FILES:,} files and {_MAX_BYTES:,} bytes when packed", field="code")
            content = path.read_bytes()
            is_key = _PRIVATE_KEY in content[:_CHUNK] and content.lstrip().startswith(b"-----BEGIN ")
            if is_key or path.suffix == ".token":
                on_secret(path)
                continue
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EARLIEST)
            executable = path.stat().st_mode & stat.S_IXUSR
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return packed.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _EXCLUDED)
        for name in sorted(names):
            path = Path(here) / name
            if path.is_file():
                yield path


def check_archive(archive: bytes, digest: str, limits: ArchiveLimits = _LIMITS) -> None:
    """Check that `unpack_code` would accept an archive, without writing anything. Raises `ArchiveRefused`: it would not."""
    _check_digest(archive, digest, limits)
    files: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    with _report_damage(digest):
        for path, member, content in _contents(archive, digest, limits):
            folders.update(path.parents)
            if member.is_dir():
                folders.add(path)
                continue
            if path in files:
                raise _duplicate(digest, path.name)
            files.add(path)
            for _ in content:
                pass
    if both := files & folders:
        raise _duplicate(digest, min(both).name)


def unpack_code(archive: bytes, digest: str, directory: Path, limits: ArchiveLimits = _LIMITS) -> Path:
    """The read-only folder `directory/digest` with the archive's content. It appears complete or not at all.

    Raises:
        ArchiveRefused: the archive is not acceptable.
        OSError: the folder cannot be written.
    """
    _check_digest(archive, digest, limits)
    place = directory / digest
    if place.is_dir():
        return place
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{digest[:12]}-", dir=directory))
    try:
        with _report_damage(digest):
            for path, member, content in _contents(archive, digest, limits):
                target = draft / path
                if member.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "xb") as file:
                    file.writelines(content)
                target.chmod(0o555 if (member.external_attr >> 16) & 0o111 else 0o444)
        for folder, _, _ in os.walk(draft, topdown=False):
            os.chmod(folder, 0o555)
        os.rename(draft, place)
        sync_directory(directory)
    finally:
        if draft.exists():
            remove(draft)
    return place


def _check_digest(archive: bytes, digest: str, limits: ArchiveLimits) -> None:
    if len(archive) > limits.packed_bytes:
        raise _refused(digest, f"{len(archive):,} bytes, at most {limits.packed_bytes:,} are accepted")
    if not is_digest(digest) or archive_digest(archive) != digest:
        raise _refused(digest, f"its SHA-256 is {archive_digest(archive)}; send it again")


@contextmanager
def _report_damage(digest: str) -> Iterator[None]:
    """Errors inside an archive are its sender's fault, not the node's."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _duplicate(digest, Path(str(error.filename)).name) from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise _refused(digest, f"not a zip archive that can be read: {error}") from error


def _contents(
    archive: bytes, digest: str, limits: ArchiveLimits
) -> Iterator[tuple[PurePosixPath, zipfile.ZipInfo, Iterator[bytes]]]:
    """The path, entry and content of each member. Sizes in an archive may be wrong, so the bytes that come out are counted."""
    left = limits.unpacked_bytes

    def chunks(source: IO[bytes]) -> Iterator[bytes]:
        nonlocal left
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise _refused(digest, f"more than {limits.unpacked_bytes:,} bytes when unpacked")
            yield chunk

    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        members = packed.infolist()
        if len(members) > limits.files:
            raise _refused(digest, f"{len(members):,} files, at most {limits.files:,} are accepted")
        for member in members:
            path = _member_path(member, digest, limits)
            with packed.open(member) as source:
                yield path, member, chunks(source)


def _member_path(member: zipfile.ZipInfo, digest: str, limits: ArchiveLimits) -> PurePosixPath:
    name = member.filename
    path = PurePosixPath(name)
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(digest, f"'{name}' is a link or a device; only files and folders are accepted")
    escapes = path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts
    if escapes or len(name) > limits.path or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise _refused(digest, f"'{name[:80]}' is not a path inside the archive")
    return path


def _refused(digest: str, why: str) -> ArchiveRefused:
    return ArchiveRefused(f"archive {digest[:12] or 'without a digest'}: {why}")


def _duplicate(digest: str, name: str) -> ArchiveRefused:
    return _refused(digest, f"'{name}' occurs twice")
