"""The environment variables of a worker: its lease page, its directories, its gang. They are read once, when a lease starts,
and are not set outside Fairlead. And the routing of requests to a serving worker, which can change during a launch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.client.lease_page import PAGE, Field, Page

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


_ATTEMPTS, _PAUSE_S = 50, 0.0002  # to read a route that is being written


@dataclass(frozen=True, slots=True)
class WorkerRoute:
    """How requests reach this worker."""

    batch: int
    rate: float  # requests per second, to all replicas of the session together
    part: float  # this replica's share; 0: it is only a standby


class RouteReader:
    """Reads the route from a lease page."""

    def __init__(self, page: Page) -> None:
        self._numbers = page.numbers
        self._last: WorkerRoute | None = None

    def now(self) -> WorkerRoute | None:
        """The current route, or None without one; the previous one if the agent died while it was writing."""
        numbers = self._numbers
        for _ in range(_ATTEMPTS):
            count = numbers[Field.ROUTES]
            found = WorkerRoute(numbers[Field.ROUTE_BATCH], numbers[Field.ROUTE_RATE] / 1000, numbers[Field.ROUTE_PART] / 1e6)
            if count % 2 == 0 and numbers[Field.ROUTES] == count:
                self._last = found if count else None
                break
            time.sleep(_PAUSE_S)
        return self._last


_routed: RouteReader | None = None


def route() -> WorkerRoute | None:
    """The current route; None outside Fairlead, and for a job that is not a serving session."""
    global _routed
    if _routed is None:
        page = LaunchContext.read().page
        if page is None:
            return None
        _routed = RouteReader(Page(page))
    return _routed.now()
