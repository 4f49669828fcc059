"""Settings of an agent, and the environment variables of its workers. They are the same for all jobs of the node."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.client.launch_context import BATCH_SIZE, NODES, TUNED
from fairlead.client.lease_page import PAGE
from fairlead.core.errors import InputError, require
from fairlead.files import make_folder
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.protocol.code_archive import ArchiveLimits
from fairlead.runtime.protocol.orders import Launch, LaunchParameters

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
    """The user that jobs run as, where the agent is root."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

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


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent runs jobs."""

    user: User | None = None  # None: the agent's own
    pages: Path | None = None  # directory of lease pages, best in memory (/dev/shm/…); None: with the launch
    cgroup: Path | None = None  # a control group (version 2) in which the agent may make groups; None: none is used
    log_bytes: int = 16 << 20  # of one file of a worker's log
    log_files: int = 4  # files of a worker's log
    keep_s: float = 7 * 86400.0  # how long launches, with their logs, and code are kept after their end was acknowledged
    sibling_grace_s: float = 5.0  # from a worker's failure to the end of the others
    kill_patience_s: float = 5.0  # from SIGKILL to a worker until its shim is killed too
    inherited: tuple[str, ...] = _INHERITED
    archives: ArchiveLimits = field(default_factory=ArchiveLimits)

    @property
    def folder_mode(self) -> int:
        """Mode of the agent's folders: jobs of another user must be able to pass through."""
        return 0o700 if self.user is None else 0o711

    def make_folder(self, path: Path) -> None:
        """Create one of the agent's folders. Raises `NodeError`: jobs of another user could write records there, or replace
        the folder."""
        make_folder(path, self.folder_mode)
        if self.user is None or self.user.uid == os.geteuid():
            return
        for folder in (path, *path.parents):
            about = folder.stat()
            shared = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and about.st_gid in self.user.groups)
            replaceable = shared and (folder == path or not about.st_mode & stat.S_ISVTX)
            if about.st_uid == self.user.uid or replaceable:
                raise NodeError(folder, f"jobs of {self.user.name} could write to it: chown it to the agent's user, chmod 711")
