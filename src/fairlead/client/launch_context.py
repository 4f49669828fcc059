"""The environment variables of a worker: its lease page, its directories, its gang. They are read once, when a lease starts,
and are not set outside Fairlead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.client.lease_page import PAGE

CHECKPOINTS = "FAIRLEAD_CHECKPOINT_DIR"
REPORTS = "FAIRLEAD_REPORTS"
GANG_PORT = "FAIRLEAD_GANG_PORT"
GANG_TOKEN = "FAIRLEAD_GANG_TOKEN"
GENERATION = "FAIRLEAD_GENERATION"
RENEWAL = "FAIRLEAD_RENEWAL"
NODES = "FAIRLEAD_NODES"
BATCH_SIZE = "FAIRLEAD_BATCH_SIZE"
TUNED = "tuned"


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What an agent passes to a worker."""

    page: Path | None = None
    checkpoints: Path | None = None
    rank: int = 0
    world_size: int = 1
    master_address: str = "127.0.0.1"
    gang_port: int = 0  # 0: the gang is not coordinated
    gang_token: str = ""
    generation: str = ""
    central: bool = False  # at its bounds it waits for an answer instead of leaving
    nodes: int = 1  # of the gang
    batch_size: int = 0  # assigned by the scheduler; 0: the job's own
    tuned: bool = False  # the job may choose its batch size

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> LaunchContext:
        """The context of this process."""
        return cls(
            page=_path(environment.get(PAGE)),
            checkpoints=_path(environment.get(CHECKPOINTS)),
            rank=_number(environment, "RANK", 0),
            world_size=_number(environment, "WORLD_SIZE", 1),
            master_address=environment.get("MASTER_ADDR") or "127.0.0.1",
            gang_port=_number(environment, GANG_PORT, 0),
            gang_token=environment.get(GANG_TOKEN, ""),
            generation=environment.get(GENERATION, ""),
            central=environment.get(RENEWAL) == "central",
            nodes=_number(environment, NODES, 1),
            batch_size=0 if environment.get(BATCH_SIZE) == TUNED else _number(environment, BATCH_SIZE, 0),
            tuned=environment.get(BATCH_SIZE) == TUNED,
        )

    @property
    def in_gang(self) -> bool:
        """Whether the workers coordinate when to stop."""
        return self.world_size > 1 and self.gang_port > 0


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise ValueError(f"the variable {name} is {text!r}: expected a whole number from 0")
    return int(text)
