"""Who may do what. A token is a long random word that is shown once; what is kept is its digest, its role and its user."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from fairlead.core.errors import InputError


class Role(StrEnum):
    ADMIN = "admin"  # everything
    USER = "user"  # its own jobs
    AGENT = "agent"  # speaks for nodes


@dataclass(frozen=True, slots=True)
class Bearer:
    role: Role
    user: str


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: str
    role: Role
    user: str


class Tokens:
    """The tokens of one control plane, kept in a file that only its owner reads. Without one they last as long as it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[str, _Entry] = {}
        if path is not None and path.exists():
            try:
                for record in orjson.loads(path.read_bytes()):
                    entry = _Entry(str(record["digest"]), Role(record["role"]), str(record["user"]))
                    self._entries[entry.digest] = entry
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                raise InputError(path, "a file of tokens that Fairlead has written") from None

    def issue(self, role: Role, user: str) -> str:
        token = f"fl_{secrets.token_urlsafe(32)}"
        self.accept(token, role, user)
        return token

    def accept(self, token: str, role: Role, user: str) -> None:
        entry = _Entry(_digest(token), role, user)
        self._entries[entry.digest] = entry
        self._write()

    def revoke(self, user: str, role: Role) -> int:
        gone = [digest for digest, entry in self._entries.items() if (entry.user, entry.role) == (user, role)]
        for digest in gone:
            del self._entries[digest]
        self._write()
        return len(gone)

    def bearer(self, token: str) -> Bearer | None:
        """Looked up by digest: how long it takes tells nothing about how near a guess is."""
        entry = self._entries.get(_digest(token))
        return None if entry is None else Bearer(entry.role, entry.user)

    def listed(self) -> Sequence[Bearer]:
        return [Bearer(entry.role, entry.user) for entry in self._entries.values()]

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_name(self._path.name + ".new")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, stat.S_IRUSR | stat.S_IWUSR), "wb") as file:
            file.write(orjson.dumps([asdict(entry) for entry in self._entries.values()]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
