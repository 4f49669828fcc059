"""API tokens and what their bearers may do. A token is shown once; its digest, role and user are stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import orjson

from fairlead.core.errors import FairleadError, InputError, JournalUnreachable
from fairlead.journal.control_files import LAUNCH_KEY, TOKENS, ControlFiles

log = logging.getLogger(__name__)

ID_LENGTH = 8
LOOK_EVERY_S = 1.0  # for changes in a database
CHANGE_WITHIN_S = 2.0  # in a database, while a control plane runs
MAX_AGE_S = 900.0  # how long tokens stay valid while the database is unreachable
_OF_LAUNCH = "fl_launch_"  # how the tokens of launches begin
ANY = "*"  # in place of an account: each job names its own


class Role(StrEnum):
    """What a token allows."""

    ADMIN = "admin"  # everything
    USER = "user"  # its own jobs
    AGENT = "agent"  # connects nodes, known or new
    NODE = "node"  # connects the node whose name is its user
    LAUNCH = "launch"  # connects the agent of one part of a launch, whose key is its user
    METRICS = "metrics"  # reads /metrics


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token."""

    role: Role
    user: str
    account: str = ""  # of their jobs, or `ANY`; empty: only the account with their own name
    digest: str = ""
    root: str = ""  # of a node's credential: a digest of the identity of its agent's root folder
    expires: float = 0.0  # Unix time; 0: never
    uses: int | None = None  # how many more nodes get a credential with an agent token; None: any number

    @property
    def id(self) -> str:
        """The first characters of the digest."""
        return self.digest[:ID_LENGTH]

    @property
    def visible_user(self) -> str | None:
        """The user whose jobs they may see; None: all users'."""
        return None if self.role is Role.ADMIN else self.user

    @property
    def is_limited(self) -> bool:
        """Whether an agent token has an end or a number of uses."""
        return self.role is Role.AGENT and (self.expires > 0 or self.uses is not None)

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
    """The tokens of one control plane, among its files; None: in memory. Changes by another process are noticed at the next
    lookup; with `follow`, by a thread, so that no lookup waits for a database."""

    def __init__(self, files: ControlFiles | None = None, clock: Callable[[], float] = time.time) -> None:
        self._files, self._clock = files, clock
        self.remote = files is not None and files.remote  # whether a change may take seconds
        self._bearers: dict[str, Bearer] = {}  # by digest; a change makes another dictionary
        self._indexed: tuple[dict[str, Bearer], dict[str, Bearer]] = ({}, {})  # these, and the credentials in them by node
        self._version: object = None  # identifies the file that was read
        self._read_at = -math.inf  # when it was last found to be this one
        self._followed = self._failing = False
        self._reading = threading.Lock()  # what one thread read before must not replace what another read since
        self._asked, self._looked = threading.Event(), threading.Condition()
        self._rounds = 0  # how often the thread has looked
        self._launch_key = b""  # with which the tokens of launches are signed; empty: it was not read yet
        self._reload()

    def issue(self, role: Role, user: str, account: str = "", *, lasts_s: float | None = None, uses: int | None = None) -> str:
        """Create a token, which ends after `lasts_s` and, for agents, after so many new credentials, if these are given."""
        token, expires = new_token(), 0.0 if lasts_s is None else self._clock() + lasts_s
        self._accept(token, Bearer(role, user, account, _digest(token), expires=expires, uses=uses))
        return token

    def accept(self, token: str, role: Role, user: str) -> None:
        self._accept(token, Bearer(role, user, digest=_digest(token)))

    def _accept(self, token: str, bearer: Bearer) -> None:
        self._change(lambda bearers: bearers.update({bearer.digest: bearer}))

    def revoke(self, name: str, role: Role | None = None) -> int:
        """Revoke all tokens of a user or a node, or the one with this id; only those of a role, if given. Return how many."""
        gone: list[Bearer] = []

        def remove(bearers: dict[str, Bearer]) -> None:
            gone[:] = [one for one in bearers.values() if name in (one.user, one.id) and role in (None, one.role)]
            for one in gone:
                del bearers[one.digest]

        self._change(remove)
        return len(gone)

    def issue_credential(self, node: str, identity: str, used: Bearer | None = None) -> str:
        """Create the credential of a node for the agent with this identity, in place of its former one. It counts as a use of
        the agent's token `used`. Raises `FairleadError`: that has no use left."""
        token = new_token()
        new = Bearer(Role.NODE, node, digest=_digest(token), root=_digest(identity))

        def put(bearers: dict[str, Bearer]) -> None:
            if used is not None and used.uses is not None:
                left = bearers[used.digest].uses if used.digest in bearers else 0
                if not left:
                    raise FairleadError(f"the agent token {used.id} has no use left")
                bearers[used.digest] = replace(bearers[used.digest], uses=left - 1)
            for one in [one for one in bearers.values() if (one.role, one.user) == (Role.NODE, node)]:
                del bearers[one.digest]
            bearers[new.digest] = new

        self._change(put)
        return token

    def launch_token(self, launch: str) -> str:
        """Return the token of the agent of one part of a launch, by its key as a text. It is computed, and stored nowhere."""
        text = base64.urlsafe_b64encode(launch.encode()).decode()
        return f"{_OF_LAUNCH}{text}.{self._signature(text)}"

    def _signature(self, text: str) -> str:
        if not self._launch_key:
            new, stored = secrets.token_bytes(32), list[bytes]()

            def keep(found: bytes | None) -> bytes:
                stored[:] = [found or new]
                return stored[0]

            if self._files is not None:
                self._files.update(LAUNCH_KEY, keep)
            self._launch_key = stored[0] if stored else new
        return hmac.new(self._launch_key, text.encode(), "sha256").hexdigest()

    def _launch_bearer(self, token: str) -> Bearer | None:
        text, _, signature = token.removeprefix(_OF_LAUNCH).partition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signature(text).encode()):
            return None
        try:
            return Bearer(Role.LAUNCH, base64.urlsafe_b64decode(text).decode(), digest=_digest(token))
        except (binascii.Error, UnicodeDecodeError):
            return None

    def credential_of(self, node: str) -> Bearer | None:
        """Return the credential of a node, if it has one."""
        self._refresh()
        if (bearers := self._bearers) is not self._indexed[0]:  # thousands of agents may connect between two changes
            self._indexed = bearers, {one.user: one for one in bearers.values() if one.role is Role.NODE}
        return self._indexed[1].get(node)

    def is_valid(self, bearer: Bearer) -> bool:
        """Return whether the token of a bearer was not revoked since."""
        self._refresh()
        return bearer.digest in self._bearers

    def bearer(self, token: str) -> Bearer | None:
        """Return the bearer of a token. The lookup by digest has a constant time."""
        if token.startswith(_OF_LAUNCH):
            return self._launch_bearer(token)
        digest = _digest(token)
        self._refresh(digest)
        return self._found(digest)

    def current(self, known: Bearer) -> Bearer | None:
        """Return the bearer of the same token as it is now; None if it was revoked or has ended. It waits for no database."""
        self._refresh()
        return self._found(known.digest)

    def _found(self, digest: str) -> Bearer | None:
        too_old = self._followed and time.monotonic() > self._read_at + MAX_AGE_S
        found = None if too_old else self._bearers.get(digest)
        return None if found is not None and 0 < found.expires <= self._clock() else found

    def may_wait(self, token: str) -> bool:
        """Return whether `bearer` may wait for a database: not in an event loop."""
        return self._followed and self._answers and _digest(token) not in self._bearers

    def listed(self) -> Sequence[Bearer]:
        return list(self._bearers.values())

    def follow(self) -> None:
        """Look for changes every second in a thread, from now on. If the database is unreachable, what was read stays valid
        for `MAX_AGE_S`."""
        self._followed = True
        threading.Thread(target=self._follow, name="tokens", daemon=True).start()

    def close(self) -> None:
        """End the thread of `follow`."""
        self._followed = False
        self._asked.set()

    def _follow(self) -> None:
        while self._followed:
            self._try_to_reload()
            with self._looked:
                self._rounds += 1
                self._looked.notify_all()
            self._asked.wait(LOOK_EVERY_S)
            self._asked.clear()

    def _refresh(self, digest: str = "") -> None:
        """Read changes by others, but never wait for a database, except for the bearer of this token if it is not known."""
        if not self._followed:
            self._try_to_reload()
        elif digest and digest not in self._bearers:
            self._look_now()

    def _look_now(self) -> None:
        """Have the thread look for a token that was just created. A database that does not answer is not waited for."""
        if not self._answers:
            return
        with self._looked:
            after_next = self._rounds + 2  # the present look may have begun before
            until = time.monotonic() + LOOK_EVERY_S
            while self._rounds < after_next and (left_s := until - time.monotonic()) > 0:
                self._asked.set()
                self._looked.wait(min(left_s, 0.05))

    @property
    def _answers(self) -> bool:
        """Whether the database has answered lately."""
        return time.monotonic() < self._read_at + 3 * LOOK_EVERY_S

    def _try_to_reload(self) -> None:
        try:
            self._reload()
        except (FairleadError, OSError) as problem:  # keep what was read before
            if not self._failing and not isinstance(problem, JournalUnreachable):  # of which the journal's term says more
                log.error("%s", problem)
            self._failing = True
        else:
            self._failing = False

    def _reload(self) -> None:
        if self._files is None:
            return
        with self._reading:
            now, version = time.monotonic(), self._files.version(TOKENS)
            if version is not None and version != self._version:
                self._bearers, self._version = self._parsed(self._files.read(TOKENS)), version
            self._read_at = now

    def _change(self, change: Callable[[dict[str, Bearer]], None]) -> None:
        if self._files is None:
            bearers = dict(self._bearers)
            change(bearers)
            self._bearers = bearers
            return

        def changed(content: bytes | None) -> bytes:
            bearers = self._parsed(content)
            change(bearers)
            plain = ("digest", "role", "user", "account")
            more = {"root": "", "expires": 0.0, "uses": None}  # written where they are not these
            return orjson.dumps(
                [
                    {key: getattr(one, key) for key in (*plain, *(k for k in more if getattr(one, k) != more[k]))}
                    for one in bearers.values()
                ]
            )

        if self._followed and not self._answers:
            raise JournalUnreachable(f"{self._files.where}: the database does not answer: tokens cannot be changed")
        files, problems = self._files, list[Exception]()

        def write() -> None:
            try:
                files.update(TOKENS, changed)
                self._reload()
            except Exception as problem:
                problems.append(problem)

        writing = threading.Thread(target=write, name="token-change", daemon=True)  # agents' leases cannot wait for long
        writing.start()
        writing.join(CHANGE_WITHIN_S if self._followed else None)
        if writing.is_alive():
            raise JournalUnreachable(f"{files.where}: the database does not answer: it is not known if tokens were changed")
        if problems:
            raise problems[0]

    def _parsed(self, content: bytes | None) -> dict[str, Bearer]:
        try:
            bearers = [
                Bearer(
                    Role(one["role"]),
                    str(one["user"]),
                    _account(one),
                    str(one["digest"]),
                    str(one.get("root", "")),
                    float(one.get("expires", 0.0)),
                    None if one.get("uses") is None else int(one["uses"]),
                )
                for one in orjson.loads(b"[]" if content is None else content)
            ]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            where = f"{self._files.where}/{TOKENS}" if self._files is not None else TOKENS
            raise InputError(where, "a file of tokens that Fairlead has written") from None
        return {one.digest: one for one in bearers}


def new_token() -> str:
    """Return a random token."""
    return f"fl_{secrets.token_urlsafe(32)}"


def _account(record: dict[str, str]) -> str:
    return str(record.get("account", record.get("entity", "")))  # `entity` in files of earlier versions


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
