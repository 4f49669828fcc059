"""How an agent treats all jobs alike."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.runtime.agent.archives import LIMITS, Limits
from fairlead.runtime.agent.environment import INHERITED


@dataclass(frozen=True, slots=True)
class User:
    """Whom jobs run as, where the agent is root."""

    name: str
    number: int
    group: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def named(cls, name: str) -> User:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise InputError("agent", "a user of this machine", field="user", value=name) from None
        if os.geteuid() not in (0, entry.pw_uid):
            raise InputError("agent", "the agent's own user, unless the agent is root", field="user", value=name)
        return cls(name, entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)), entry.pw_dir)

    @property
    def numbers(self) -> list[int]:
        return [self.number, self.group, *self.groups]

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True, slots=True)
class Settings:
    user: User | None = None  # None: the agent's own
    pages: Path | None = None  # where lease pages lie, best in memory (/dev/shm/…); None: with the launch
    cgroup: Path | None = None  # a control group (version 2) that the agent may make groups in; None: none is used
    log_bytes: int = 16 << 20  # of one piece of a worker's log
    log_pieces: int = 4
    keep_s: float = 7 * 86400.0  # what is left of a launch, its logs too, after its end was heard of; and code
    sibling_grace_s: float = 5.0  # from a worker's failure to the end of the others
    kill_patience_s: float = 5.0  # from SIGKILL to a worker until its stub is killed too
    inherited: tuple[str, ...] = INHERITED
    archives: Limits = LIMITS

    @property
    def folder_mode(self) -> int:
        """Of what the agent owns: where jobs run as somebody else, they must be able to pass through."""
        return 0o700 if self.user is None else 0o711


DEFAULTS = Settings()
