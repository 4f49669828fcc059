"""API tokens and what their bearers may do. A token is shown once; its digest, role and user are stored."""

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
"""In place of an account: each job names its own."""


class Role(StrEnum):
    """What a token allows."""

    ADMIN = "admin"  # everything
    USER = "user"  # its own jobs
    AGENT = "agent"  # connects nodes


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token."""

    role: Role
    user: str
    account: str = ""  # of their jobs, or `ANY`; empty: only the account with their own name
    id: str = ""  # the first characters of the digest

    def account_of(self, asked: str) -> str | None:
        """Return the account of a job that asks for one (empty: for none); None if it is not allowed.

        Accounts have shares, so users cannot choose freely."""
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
    """The tokens of one control plane, in a file that only its owner may read; None: in memory.

    Changes by another process are noticed at the next lookup."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[str, _Entry] = {}
        self._version: tuple[int, ...] = ()  # identifies the file that was read
        self._reload()

    def issue(self, role: Role, user: str, account: str = "") -> str:
        """Create a token."""
        token = f"fl_{secrets.token_urlsafe(32)}"
        self.accept(token, role, user, account)
        return token

    def accept(self, token: str, role: Role, user: str, account: str = "") -> None:
        """Store a token's digest."""
        entry = _Entry(_digest(token), role, user, account)
        with self._locked():
            self._entries[entry.digest] = entry
            self._write()

    def revoke(self, name: str) -> int:
        """Revoke all tokens of a user, or the one with this id; return how many."""
        with self._locked():
            gone = [digest for digest, one in self._entries.items() if name in (one.user, digest[:ID_LENGTH])]
            for digest in gone:
                del self._entries[digest]
            self._write()
        return len(gone)

    def bearer(self, token: str) -> Bearer | None:
        """Return the bearer of a token. The lookup by digest has a constant time."""
        try:
            self._reload()
        except InputError as problem:  # keep what was read before
            log.error("%s", problem)
        entry = self._entries.get(_digest(token))
        return None if entry is None else entry.bearer

    def listed(self) -> Sequence[Bearer]:
        """Return the bearers of all tokens."""
        return [entry.bearer for entry in self._entries.values()]

    def _reload(self) -> None:
        """Read the file if it was replaced."""
        if self._path is None:
            return
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        if version == self._version:
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
        self._entries, self._version = {entry.digest: entry for entry in entries}, version

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against other processes, and read their changes."""
        if self._path is None:
            yield
            return
        lock = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._reload()
            yield
        finally:
            os.close(lock)

    def _write(self) -> None:
        if self._path is not None:
            atomic_write(self._path, orjson.dumps([asdict(entry) for entry in self._entries.values()]), private=True)


def _account(record: dict[str, str]) -> str:
    return str(record.get("account", record.get("entity", "")))  # `entity` in files of earlier versions


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
