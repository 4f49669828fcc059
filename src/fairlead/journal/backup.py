"""Backups of an SQLite journal with the other files of its folder, also while a control plane writes them, and their
restoration. A backup is one tar file. PostgreSQL has its own tools."""

from __future__ import annotations

import hashlib
import io
import os
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fairlead.core.errors import FairleadError, InputError, require
from fairlead.files import atomic_write, make_folder, remove, sync_directory
from fairlead.journal.control_files import CODE, ORIGIN, TOKENS
from fairlead.journal.recovery import is_postgres, recover
from fairlead.journal.sqlite import SqliteJournal

JOURNAL = "journal.sqlite"
NAME = "fairlead-{}.tar"  # with the time, in a folder of backups
_DIGEST = "FAIRLEAD.sha256"  # of a member, in its extended header
_OF_BACKUP = re.compile(r"fairlead-[0-9TZ-]+\.tar")
_OTHER_FILES = (TOKENS, ORIGIN, "admin.token", "agent.token")
_MEMBER = re.compile(rf"{re.escape(JOURNAL)}|{'|'.join(map(re.escape, _OTHER_FILES))}|{CODE}/[0-9a-f]{{64}}\.(zip|user)")


@dataclass(frozen=True)
class BackupContent:
    """What is in a backup: the number and the Unix time of its last event, and how many other files it has."""

    path: Path
    events: int
    last_event: float
    files: int


def write_backup(root: Path, journal: str, target: Path) -> BackupContent:
    """Write a backup to a file that only its owner may read, and read it back. The journal is copied first: code that its jobs
    use is stored before them. Raises `FairleadError`: it cannot be made, or is not readable."""
    place = _sqlite_path(root, journal)
    require(place.is_file(), place, "the journal of a control plane that was started before")
    with tempfile.TemporaryDirectory(prefix=".fairlead-backup-", dir=target.parent) as draft:
        copy = Path(draft) / JOURNAL
        _copy_journal(place, copy)
        about = _read(copy)
        found = [copy, *(root / name for name in _OTHER_FILES), *sorted((root / CODE).glob("*"))]
        digests: dict[str, str] = {}
        archive = Path(draft) / "backup.tar"
        with open(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                for path in found:
                    name = path.name if path.parent.name != CODE else f"{CODE}/{path.name}"
                    if _MEMBER.fullmatch(name) and path.is_file():
                        digests[name] = _add(tar, name, path)
            file.flush()
            os.fsync(file.fileno())
        if {name: hashlib.sha256(content).hexdigest() for name, content in _members(archive)} != digests:
            raise FairleadError(f"{target}: the backup cannot be read back as it was written: check the disk")
        os.replace(archive, target)
        sync_directory(target.parent)
    return BackupContent(target, *about, len(digests) - 1)


def restore_backup(backup: Path, root: Path) -> BackupContent:
    """Restore a backup into a root that does not exist yet, or is empty. Raises `FairleadError`: it is not one, or the root is
    in use; it stays empty."""
    require(
        not root.exists() or (root.is_dir() and not any(root.iterdir())), root, "a new or empty folder; nothing is overwritten"
    )
    make_folder(root, 0o700)
    try:
        return _restore(backup, root)
    except BaseException:
        for path in root.iterdir():
            remove(path) if path.is_dir() else path.unlink()
        raise


def _restore(backup: Path, root: Path) -> BackupContent:
    count = 0
    for name, content in _members(backup):
        if name.startswith(f"{CODE}/"):
            make_folder(root / CODE, 0o700)
        atomic_write(root / name, content, private=True)
        count += 1
    require((root / JOURNAL).is_file(), backup, "a backup of 'fairlead backup', with a journal")
    return BackupContent(backup, *_read(root / JOURNAL), count - 1)


def remove_old_backups(folder: Path, keep: int) -> list[Path]:
    """Remove all but the last backups in a folder; return those that are removed. Other files stay."""
    old = sorted(path for path in folder.iterdir() if _OF_BACKUP.fullmatch(path.name))[:-keep]
    for path in old:
        path.unlink()
    return old


def _sqlite_path(root: Path, journal: str) -> Path:
    if is_postgres(journal):
        raise FairleadError(
            "a PostgreSQL journal is backed up by PostgreSQL: 'pg_dump --schema=fairlead URL > FILE' copies it while it runs, "
            "with tokens and code; 'psql URL < FILE' restores it into an empty database; streaming replication keeps another"
        )
    if journal.endswith(".jsonl"):
        raise InputError("--journal", "an SQLite journal; a .jsonl file can be copied as it is", value=journal)
    return Path(journal.removeprefix("sqlite:///")) if journal else root / JOURNAL


def _copy_journal(source: Path, copy: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro", uri=True)) as one,
            closing(sqlite3.connect(copy)) as other,
        ):
            one.backup(other)
            other.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log
    except sqlite3.Error as error:
        raise FairleadError(f"{source}: cannot copy the journal: {error}") from error


def _read(journal: Path) -> tuple[int, float]:
    """The number and the Unix time of the last event of a journal, whose state is recovered."""
    with closing(SqliteJournal(journal, write=False)) as opened:
        state, last = recover(opened)
    return last, state.origin + state.time


def _add(tar: tarfile.TarFile, name: str, path: Path) -> str:
    content = path.read_bytes()
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(path.stat().st_mtime)
    digest = hashlib.sha256(content).hexdigest()
    member.pax_headers = {_DIGEST: digest}
    tar.addfile(member, io.BytesIO(content))
    return digest


def _members(backup: Path) -> Iterator[tuple[str, bytes]]:
    """The files in a backup; it is not trusted to have safe names. Backups of earlier versions have no digests."""
    try:
        with tarfile.open(backup) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() and _MEMBER.fullmatch(member.name) else None
                if file is None:
                    raise FairleadError(f"{backup}: not a backup of 'fairlead backup': it has {member.name[:80]!r} in it")
                content = file.read()
                if member.pax_headers.get(_DIGEST, digest := hashlib.sha256(content).hexdigest()) != digest:
                    raise FairleadError(f"{backup}: {member.name} is damaged (its SHA-256 digest differs): use another backup")
                yield member.name, content
    except (OSError, tarfile.TarError, EOFError) as problem:
        why = (isinstance(problem, OSError) and problem.strerror) or "it is not a tar file, or not all of it"
        raise FairleadError(f"{backup}: cannot read the backup: {why}") from None


def backup_record(content: BackupContent, age_s: float) -> Mapping[str, object]:
    """Return what is known of a backup, for scripts."""
    return {
        "file": str(content.path),
        "events": content.events,
        "last_event_age_s": round(age_s, 1),
        "files": content.files,
    }
