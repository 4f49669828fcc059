"""The environment of a worker: a few variables of the agent's, the task's, and Fairlead's, which nobody overrides. The rest of
the agent's environment may hold secrets and stays with the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairlead.client.page import PAGE
from fairlead.client.surroundings import BATCH_SIZE, NODES, TUNED
from fairlead.runtime.orders import Given, Launch

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What a program needs to find its libraries and to write dates."""


def variables(
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
        **_given(launch.given),
        "FAIRLEAD_RENEWAL": "central" if launch.task.central else "optimistic",
    }


def _given(given: Given) -> dict[str, str]:
    """Of what the plan said nothing, there is no variable."""
    said = {
        BATCH_SIZE: str(given.batch_size) if given.batch_size > 0 else TUNED if given.batch_size else "",
        "FAIRLEAD_CPUS": f"{given.cpus:g}" if given.cpus else "",
        "FAIRLEAD_HOST_MEMORY_GB": f"{given.host_memory_gb:g}" if given.host_memory_gb else "",
    }
    return {name: value for name, value in said.items() if value}
