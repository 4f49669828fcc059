"""Settings of an agent, and the environment variables of its workers. They are the same for all jobs of the node."""

from __future__ import annotations

import grp
import logging
import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from fairlead.client.launch_context import BATCH_SIZE, NODES, TUNED
from fairlead.client.lease_page import PAGE
from fairlead.core.errors import InputError, require
from fairlead.files import make_folder, read_json, write_json
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.containers import ContainerRules
from fairlead.runtime.agent.shim import SETTLE_S
from fairlead.runtime.protocol.code_archive import ArchiveLimits
from fairlead.runtime.protocol.orders import Launch, LaunchParameters

log = logging.getLogger(__name__)

_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME")
"""The agent's variables that workers inherit: for libraries and dates. All others may be secret and stay with the agent."""


def worker_environment(
    launch: Launch, local_rank: int, *, device: str, page: str, reports: Path, checkpoints: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """All variables of a worker. Fairlead's own variables override those of the task."""
    return {
        **inherited,
        "PYTHONUNBUFFERED": "1",  # logs show output as it is printed
        **launch.task.environment,
        # As NVML counts, so that a number means the same device to both.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": device,
        "RANK": str(launch.ranks[local_rank]),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(len(launch.ranks)),
        "MASTER_ADDR": launch.master_address,
        "MASTER_PORT": str(launch.master_port),
        PAGE: page,
        "FAIRLEAD_REPORTS": str(reports),
        "FAIRLEAD_CHECKPOINT_DIR": str(checkpoints),
        "FAIRLEAD_JOB": str(launch.job),
        "FAIRLEAD_JOB_NAME": launch.name,
        "FAIRLEAD_GENERATION": str(launch.generation),
        "FAIRLEAD_GANG_PORT": str(launch.gang_port),
        **({"FAIRLEAD_GANG_TOKEN": launch.gang_token} if launch.gang_token else {}),
        NODES: str(launch.nodes),
        **_parameter_variables(launch.parameters),
        "FAIRLEAD_RENEWAL": "central" if launch.task.central else "optimistic",
    }


def _parameter_variables(parameters: LaunchParameters) -> dict[str, str]:
    size = parameters.batch_size
    variables = {
        BATCH_SIZE: str(size) if size > 0 else TUNED if size else "",
        "FAIRLEAD_CPUS": f"{parameters.cpus:g}" if parameters.cpus else "",
        "FAIRLEAD_HOST_MEMORY_GB": f"{parameters.host_memory_gb:g}" if parameters.host_memory_gb else "",
    }
    return {name: value for name, value in variables.items() if value}


@dataclass(frozen=True, slots=True)
class User:
    """The Unix user that a job runs as, where the agent is root."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str  # empty: a folder of the launch

    @classmethod
    def named(cls, name: str) -> User:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise InputError("agent", "a user of this machine", field="user", value=name) from None
        require(os.geteuid() in (0, entry.pw_uid), "agent", "the agent's own user, unless the agent is root", "user", name)
        return cls(name, entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)), entry.pw_dir)

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


_FIRST_ACCOUNT, _OVERFLOW = 1000, 65534  # below are accounts of the system; the last is shared by programs
USERS = "users.json"  # the uids of a pool, by user of the API


@dataclass(frozen=True, slots=True)
class UserPool:
    """Maps each user of the API to a Unix user: the account of the same name, or a uid of this range. A uid needs no account.
    Its place in the range follows from the user's name, so that nodes agree unless two names meet at one place."""

    first: int = 200_000
    last: int = 200_999

    @classmethod
    def parse(cls, text: str) -> UserPool:
        """A pool from `first-last`."""
        found = re.fullmatch(r"([0-9]{4,10})-([0-9]{4,10})", text)
        pool = cls(int(found[1]), int(found[2])) if found else cls(0, -1)
        right = _FIRST_ACCOUNT <= pool.first <= pool.last < 2**32 - 2
        require(right, "agent", "a range of uids above 1000, such as 200000-200999", "user-pool", text)
        return pool

    def user_of(self, name: str, root: Path) -> User:
        """The Unix user of a user of the API. Uids are stored in the agent's `root`. Raises `NodeError`: none is free."""
        try:
            uid = pwd.getpwnam(name).pw_uid
            if uid >= _FIRST_ACCOUNT and uid != _OVERFLOW:
                return User.named(name)
        except (KeyError, ValueError):  # ValueError: a name that no account can have
            pass
        place = root / USERS
        stored = read_json(place) if place.exists() else {}
        if not isinstance(stored, dict) or not all(type(uid) is int and uid >= _FIRST_ACCOUNT for uid in stored.values()):
            raise NodeError(place, "damaged: restore it from a backup, or remove it to assign new uids")
        if name not in stored:
            stored[name] = self._free(name, set(stored.values()), place)
            write_json(place, stored)
        return User(name, stored[name], stored[name], (stored[name],), "")

    def _free(self, name: str, taken: set[int], place: Path) -> int:
        size = self.last - self.first + 1
        wanted = crc32(name.encode(errors="replace"))
        for uid in (self.first + (wanted + step) % size for step in range(size)):
            if uid not in taken and not _exists(uid):
                return uid
        raise NodeError(place, f"all uids from {self.first} to {self.last} are in use: pass a larger --user-pool")


def _exists(number: int) -> bool:
    """Whether an account or a group has this number."""
    for find in (pwd.getpwuid, grp.getgrgid):
        try:
            find(number)
        except KeyError:
            continue
        return True
    return False


def choose_users(user: str, pool: str, *, allow_root_jobs: bool, quiet: bool = False) -> tuple[User | None, UserPool | None]:
    """The Unix user of all jobs, and the pool where each user has its own, from an agent's options. Without either, jobs run as
    the agent, which the log says unless `quiet`. Raises `InputError`: jobs would run as root without `allow_root_jobs`."""
    numbers = UserPool.parse(pool)
    if user:
        chosen = User.named(user)
        require(chosen.uid != 0 or allow_root_jobs, "agent", "a user other than root, or --allow-root-jobs", "user", user)
        return chosen, None
    if os.geteuid() == 0 and not allow_root_jobs:
        return None, numbers
    if not quiet and os.geteuid() == 0:
        log.warning("jobs run as root (--allow-root-jobs): they can read and change everything on this node")
    elif not quiet:
        log.warning("jobs run as the agent's user, so users are not separated; to separate them, run the agent as root")
    return None, None


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent runs jobs."""

    user: User | None = None  # of all jobs; None: the agent's own, or one for each user
    pool: UserPool | None = None  # where each user's jobs run as a Unix user of their own; only root can do that
    pages: Path | None = None  # directory of lease pages, best in memory (/dev/shm/…); None: with the launch
    cgroup: Path | None = None  # a control group (version 2) in which the agent may make groups; None: none is used
    reports_limits: bool = False  # tell the control plane which resources of jobs are limited, also that none is
    log_bytes: int = 16 << 20  # of one file of a worker's log
    log_files: int = 4  # files of a worker's log
    keep_s: float = 7 * 86400.0  # how long launches, with their logs, and code are kept after their end was acknowledged
    sibling_grace_s: float = 5.0  # from a worker's failure to the end of the others
    kill_patience_s: float = 5.0  # from SIGKILL to a worker until its shim is killed too
    settle_s: float = SETTLE_S  # from the end of a script until it counts as its own end, and not that of a signal to all
    inherited: tuple[str, ...] = _INHERITED
    archives: ArchiveLimits = field(default_factory=ArchiveLimits)
    containers: ContainerRules = field(default_factory=ContainerRules)

    @property
    def folder_mode(self) -> int:
        """Mode of the agent's folders: jobs of another user must be able to pass through."""
        return 0o700 if self.user is None and self.pool is None else 0o711

    def user_of(self, name: str, root: Path) -> User | None:
        """The Unix user for the jobs of a user of the API; None: the agent's own."""
        return self.user or (self.pool.user_of(name, root) if self.pool is not None else None)

    def make_folder(self, path: Path) -> None:
        """Create one of the agent's folders. Raises `NodeError`: jobs of another user could write records there, or replace
        the folder."""
        make_folder(path, self.folder_mode)
        if self.pool is not None:
            self._open_to_users(path)
        if self.user is None or self.user.uid == os.geteuid():
            return
        for folder in (path, *path.parents):
            about = folder.stat()
            shared = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and about.st_gid in self.user.groups)
            replaceable = shared and (folder == path or not about.st_mode & stat.S_ISVTX)
            if about.st_uid == self.user.uid or replaceable:
                raise NodeError(folder, f"jobs of {self.user.name} could write to it: chown it to the agent's user, chmod 711")

    def _open_to_users(self, path: Path) -> None:
        """Let all users pass through an agent's folder, which none of them may replace or write to."""
        for folder in (path, *path.parents):
            about = folder.stat()
            shared = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and about.st_gid != 0)
            of_user = about.st_uid >= _FIRST_ACCOUNT and about.st_uid != os.geteuid()
            if of_user or (shared and (folder == path or not about.st_mode & stat.S_ISVTX)):
                raise NodeError(folder, "users' jobs could write to it: chown it to the agent's user, chmod 711")
            if folder != path and not about.st_mode & stat.S_IXOTH:
                raise NodeError(
                    folder,
                    "users' jobs cannot pass through it: chmod o+x, choose another folder (--root, serve --checkpoints), "
                    "or, to try Fairlead as root, start the agent with --allow-root-jobs",
                )
        if not path.stat().st_mode & stat.S_IXOTH:  # made by an agent that ran all jobs as itself
            os.chmod(path, self.folder_mode)
