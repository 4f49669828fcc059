"""How an agent treats all jobs alike."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.client.launch_context import BATCH_SIZE, NODES, TUNED
from fairlead.client.lease_page import PAGE
from fairlead.core.errors import InputError
from fairlead.runtime.agent.archives import LIMITS, ArchiveLimits
from fairlead.runtime.protocol.orders import Launch, LaunchParameters

# The environment of a worker: a few variables of the agent's, the task's, and Fairlead's, which nobody overrides. The rest of
# the agent's environment may hold secrets and stays with the agent.

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What a program needs to find its libraries and to write dates."""


def worker_environment(
    launch: Launch, local_rank: int, *, device: str, page: Path, reports: Path, checkpoints: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    return {
        **inherited,
        "PYTHONUNBUFFERED": "1",  # whoever follows a log sees it as it is printed
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
        PAGE: str(page),
        "FAIRLEAD_REPORTS": str(reports),
        "FAIRLEAD_CHECKPOINT_DIR": str(checkpoints),
        "FAIRLEAD_JOB": str(launch.job),
        "FAIRLEAD_GENERATION": str(launch.generation),
        "FAIRLEAD_GANG_PORT": str(launch.gang_port),
        **({"FAIRLEAD_GANG_TOKEN": launch.gang_token} if launch.gang_token else {}),
        NODES: str(launch.nodes),
        **_given(launch.parameters),
        "FAIRLEAD_RENEWAL": "central" if launch.task.central else "optimistic",
    }


def _given(given: LaunchParameters) -> dict[str, str]:
    """Of what the plan said nothing, there is no variable."""
    said = {
        BATCH_SIZE: str(given.batch_size) if given.batch_size > 0 else TUNED if given.batch_size else "",
        "FAIRLEAD_CPUS": f"{given.cpus:g}" if given.cpus else "",
        "FAIRLEAD_HOST_MEMORY_GB": f"{given.host_memory_gb:g}" if given.host_memory_gb else "",
    }
    return {name: value for name, value in said.items() if value}


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
class AgentSettings:
    user: User | None = None  # None: the agent's own
    pages: Path | None = None  # where lease pages lie, best in memory (/dev/shm/…); None: with the launch
    cgroup: Path | None = None  # a control group (version 2) that the agent may make groups in; None: none is used
    log_bytes: int = 16 << 20  # of one piece of a worker's log
    log_pieces: int = 4
    keep_s: float = 7 * 86400.0  # what is left of a launch, its logs too, after its end was heard of; and code
    sibling_grace_s: float = 5.0  # from a worker's failure to the end of the others
    kill_patience_s: float = 5.0  # from SIGKILL to a worker until its stub is killed too
    inherited: tuple[str, ...] = INHERITED
    archives: ArchiveLimits = LIMITS

    @property
    def folder_mode(self) -> int:
        """Of what the agent owns: where jobs run as somebody else, they must be able to pass through."""
        return 0o700 if self.user is None else 0o711


DEFAULTS = AgentSettings()
