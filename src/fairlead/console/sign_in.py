"""Sessions of browsers, in memory: random ids in place of tokens, so that no page keeps a token. A session ends some hours
after its last use, when its user signs out, or with the token that it was opened with."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.runtime.control.tokens import Bearer, Tokens

LASTS_S = 12 * 3600.0  # after the last use
MAX_OF_TOKEN = 50  # sessions of one token; the one that was not used for longest ends


@dataclass(slots=True)
class _Session:
    """A session, and when it was last used."""

    bearer: Bearer
    used_s: float


class Sessions:
    """All sessions, by the digests of their ids."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._clock = tokens, clock
        self._sessions: dict[bytes, _Session] = {}  # in the order of their last use

    def open(self, bearer: Bearer) -> str:
        """Open a session; return its id."""
        now, mine = self._clock(), list[bytes]()
        for digest, session in list(self._sessions.items()):
            if session.used_s + LASTS_S <= now:
                del self._sessions[digest]
            elif session.bearer.digest == bearer.digest:
                mine.append(digest)
        for digest in mine[: max(0, len(mine) + 1 - MAX_OF_TOKEN)]:
            del self._sessions[digest]
        session_id = secrets.token_urlsafe(32)
        self._sessions[_digest(session_id)] = _Session(bearer, now)
        return session_id

    def bearer(self, session_id: str, *, use: bool = True) -> Bearer | None:
        """Return the bearer of a session's token; None if either has ended. It counts as a use, if `use`."""
        digest, now = _digest(session_id), self._clock()
        session = self._sessions.get(digest)
        if session is None:
            return None
        found = None if session.used_s + LASTS_S <= now else self._tokens.current(session.bearer)
        if found is None:
            del self._sessions[digest]
        elif use:
            self._sessions[digest] = self._sessions.pop(digest)
            session.used_s = now
        return found

    def close(self, session_id: str) -> None:
        """End a session, if there is one with this id."""
        self._sessions.pop(_digest(session_id), None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()
