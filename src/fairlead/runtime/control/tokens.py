"""API tokens and what their bearers may do. A token is shown once; its digest, role and user are stored."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from fairlead.core.errors import InputError
from fairlead.files import atomic_write

log = logging.getLogger(__name__)

ID_LENGTH = 8
ANY = "*"  # in place of an account: each job names its own


class Role(StrEnum):
    """What a token allows."""

    ADMIN = "admin"  # everything
    USER = "user"  # its own jobs
    AGENT = "agent"  # connects nodes, known or new
    NODE = "node"  # connects the node whose name is its user
    METRICS = "metrics"  # reads /metrics


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token."""

    role: Role
    user: str
    account: str = ""  # of their jobs, or `ANY`; empty: only the account with their own name
    digest: str = ""
    root: str = ""  # of a node's credential: a digest of the identity of its agent's root folder

    @property
    def id(self) -> str:
        """The first characters of the digest."""
        return self.digest[:ID_LENGTH]

    @property
    def visible_user(self) -> str | None:
        """The user whose jobs they may see; None: all users'."""
        return None if self.role is Role.ADMIN else self.user

    def is_for(self, identity: str) -> bool:
        """Return whether a node's credential was given to the agent with this identity."""
        return self.root == _digest(identity)

    def account_of(self, asked: str) -> str | None:
        """Return the account of a job that asks for one (empty: for none); None if it is not allowed. Accounts have shares, so
        users cannot choose freely."""
        if self.account and self.account != ANY:
            return self.account if asked in ("", self.account) else None
        free = self.account == ANY or self.role is Role.ADMIN
        return asked if free or asked in ("", self.user) else None


class Tokens:
    """The tokens of one control plane, in a file that only its owner may read; None: in memory. Changes by another process are
    noticed at the next lookup."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._bearers: dict[str, Bearer] = {}  # by digest
        self._version: tuple[int, ...] = ()  # identifies the file that was read
        self._reload()

    def issue(self, role: Role, user: str, account: str = "") -> str:
        token = f"fl_{secrets.token_urlsafe(32)}"
        self.accept(token, role, user, account)
        return token

    def accept(self, token: str, role: Role, user: str, account: str = "") -> None:
        digest = _digest(token)
        with self._changing() as bearers:
            bearers[digest] = Bearer(role, user, account, digest)

    def revoke(self, name: str, role: Role | None = None) -> int:
        """Revoke all tokens of a user or a node, or the one with this id; only those of a role, if given. Return how many."""
        with self._changing() as bearers:
            gone = [one for one in bearers.values() if name in (one.user, one.id) and role in (None, one.role)]
            for one in gone:
                del bearers[one.digest]
        return len(gone)

    def issue_credential(self, node: str, identity: str) -> str:
        """Create the credential of a node for the agent with this identity, in place of its former one."""
        token = f"fl_{secrets.token_urlsafe(32)}"
        new = Bearer(Role.NODE, node, digest=_digest(token), root=_digest(identity))
        with self._changing() as bearers:
            for one in [one for one in bearers.values() if (one.role, one.user) == (Role.NODE, node)]:
                del bearers[one.digest]
            bearers[new.digest] = new
        return token

    def credential_of(self, node: str) -> Bearer | None:
        """Return the credential of a node, if it has one."""
        self._refresh()
        return next((one for one in list(self._bearers.values()) if (one.role, one.user) == (Role.NODE, node)), None)

    def is_valid(self, bearer: Bearer) -> bool:
        """Return whether the token of a bearer was not revoked since."""
        self._refresh()
        return bearer.digest in self._bearers

    def bearer(self, token: str) -> Bearer | None:
        """Return the bearer of a token. The lookup by digest has a constant time."""
        self._refresh()
        return self._bearers.get(_digest(token))

    def listed(self) -> Sequence[Bearer]:
        return list(self._bearers.values())

    def _refresh(self) -> None:
        try:
            self._reload()
        except InputError as problem:  # keep what was read before
            log.error("%s", problem)

    def _reload(self) -> None:
        if self._path is None:
            return
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if version == self._version:
            return
        try:
            bearers = [
                Bearer(Role(one["role"]), str(one["user"]), _account(one), str(one["digest"]), str(one.get("root", "")))
                for one in orjson.loads(self._path.read_bytes())
            ]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise InputError(self._path, "a file of tokens that Fairlead has written") from None
        self._bearers, self._version = {one.digest: one for one in bearers}, version

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Bearer]]:
        """Lock the file against other processes, read their changes, and store what is changed here, or nothing."""
        if self._path is None:
            yield self._bearers
            return
        lock = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._reload()
            bearers = dict(self._bearers)
            yield bearers
            keys = ("digest", "role", "user", "account", "root")
            records = [{key: getattr(one, key) for key in keys if key != "root" or one.root} for one in bearers.values()]
            atomic_write(self._path, orjson.dumps(records), private=True)
            self._bearers = bearers
        finally:
            os.close(lock)


def _account(record: dict[str, str]) -> str:
    return str(record.get("account", record.get("entity", "")))  # `entity` in files of earlier versions


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
