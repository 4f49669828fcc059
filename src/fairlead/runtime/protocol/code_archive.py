"""Code to be sent along with a job: a directory, or a zip file, as the bytes of an archive. The same files give the same bytes,
so that what was sent before is not sent again."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fairlead.core.errors import InputError

LEFT_OUT = frozenset({".git", ".hg", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".fairlead"})
"""Folders that nobody means to send."""

MOST_BYTES, MOST_FILES = 64 << 20, 50_000

_EARLIEST = (1980, 1, 1, 0, 0, 0)


def archive_digest(archive: bytes) -> str:
    """By which an archive is known."""
    return hashlib.sha256(archive).hexdigest()


def pack_code(place: Path) -> bytes:
    """A zip file as it is; a directory packed, without `LEFT_OUT`. Links are followed to files, not to folders."""
    if place.is_file():
        archive = place.read_bytes()
        if not zipfile.is_zipfile(io.BytesIO(archive)):
            raise InputError(place, "a directory, or a zip file", field="code")
    elif place.is_dir():
        archive = _packed(place)
    else:
        raise InputError(place, "a directory, or a zip file, that is there", field="code")
    if len(archive) > MOST_BYTES:
        raise InputError(
            place, f"at most {MOST_BYTES:,} bytes when packed; data belongs on the nodes", value=f"{len(archive):,}"
        )
    return archive


def _packed(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for count, path in enumerate(_files(folder)):
            if count >= MOST_FILES or packed.tell() > MOST_BYTES:
                raise InputError(folder, f"at most {MOST_FILES:,} files and {MOST_BYTES:,} bytes when packed", field="code")
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EARLIEST)
            runs = path.stat().st_mode & stat.S_IXUSR
            entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return packed.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(names):
            path = Path(here) / name
            if path.is_file():
                yield path
