"""Who may do what. A token is a long random word that is shown once; what is kept is its digest, its role and its user."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from fairlead.core.errors import InputError
from fairlead.files import atomic_write

log = logging.getLogger(__name__)

ID_LENGTH = 8
ANY = "*"
"""In place of an account: whichever each job says."""


class Role(StrEnum):
    ADMIN = "admin"  # everything
    USER = "user"  # its own jobs
    AGENT = "agent"  # speaks for nodes


@dataclass(frozen=True, slots=True)
class Bearer:
    role: Role
    user: str
    account: str = ""  # whose their jobs are, or `ANY`; empty: their own name's, if any
    id: str = ""  # the beginning of the token's digest

    def account_of(self, asked: str) -> str | None:
        """Whose a job is that asks for this, or (empty) for nothing; None where it may not. Shares are given to accounts, so
        nobody may be of another's by saying so."""
        if self.account and self.account != ANY:
            return self.account if asked in ("", self.account) else None
        free = self.account == ANY or self.role is Role.ADMIN
        return asked if free or asked in ("", self.user) else None


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: str
    role: Role
    user: str
    account: str = ""

    @property
    def bearer(self) -> Bearer:
        return Bearer(self.role, self.user, self.account, self.digest[:ID_LENGTH])


class Tokens:
    """The tokens of one control plane, kept in a file that only its owner reads; whoever else changes that file is noticed at
    the next look. Without a file they last as long as it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[str, _Entry] = {}
        self._seen: tuple[int, ...] = ()  # what the file was like when it was read
        self._follow()

    def issue(self, role: Role, user: str, account: str = "") -> str:
        token = f"fl_{secrets.token_urlsafe(32)}"
        self.accept(token, role, user, account)
        return token

    def accept(self, token: str, role: Role, user: str, account: str = "") -> None:
        entry = _Entry(_digest(token), role, user, account)
        with self._alone():
            self._entries[entry.digest] = entry
            self._write()

    def revoke(self, name: str) -> int:
        """All tokens of a user, or the one with this id; how many."""
        with self._alone():
            gone = [digest for digest, one in self._entries.items() if name in (one.user, digest[:ID_LENGTH])]
            for digest in gone:
                del self._entries[digest]
            self._write()
        return len(gone)

    def bearer(self, token: str) -> Bearer | None:
        """Looked up by digest: how long it takes tells nothing about how near a guess is."""
        try:
            self._follow()
        except InputError as problem:  # what was known still holds
            log.error("%s", problem)
        entry = self._entries.get(_digest(token))
        return None if entry is None else entry.bearer

    def listed(self) -> Sequence[Bearer]:
        return [entry.bearer for entry in self._entries.values()]

    def _follow(self) -> None:
        """Read the file, where it is another than before: it is never changed, only replaced."""
        if self._path is None:
            return
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return
        try:
            entries = [
                _Entry(
                    str(record["digest"]),
                    Role(record["role"]),
                    str(record["user"]),
                    _account(record),
                )
                for record in orjson.loads(self._path.read_bytes())
            ]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise InputError(self._path, "a file of tokens that Fairlead has written") from None
        self._entries, self._seen = {entry.digest: entry for entry in entries}, seen

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile, and what others changed before is known."""
        if self._path is None:
            yield
            return
        lock = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._follow()
            yield
        finally:
            os.close(lock)

    def _write(self) -> None:
        if self._path is not None:
            atomic_write(self._path, orjson.dumps([asdict(entry) for entry in self._entries.values()]), private=True)


def _account(record: dict[str, str]) -> str:
    return str(record.get("account", record.get("entity", "")))  # `account` in files of earlier versions


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
