"""What an agent writes down about a launch, in `root/jobs/JOB/GENERATION/`, so that the next one can go on from there:

- `record.json`: what was launched and which processes it is, written before any of them begins;
- `stop.json`: that it was asked to stop, and until when;
- `ended.json`: how it ended, and `settled` when nobody needs to be told any more;
- `RANK/`: each worker's exit, log and reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fairlead.files import read_json, write_json
from fairlead.runtime.protocol.orders import Ended, Launch

RECORD, STOP, ENDED, SETTLED = "record.json", "stop.json", "ended.json", "settled"
VERSION = 1
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    rank: int
    accelerator: int
    pid: int  # its stub's
    started: int
    page: str
    cgroup: str = ""  # its control group, where it has one


@dataclass(frozen=True, slots=True)
class Record:
    job: int
    generation: int
    name: str
    world_size: int
    cooperative: bool
    grace_s: float
    max_s: float
    boot: str  # which start of the machine the processes belong to
    workers: tuple[WorkerRecord, ...]
    central: bool = False

    @classmethod
    def of(cls, launch: Launch, workers: tuple[WorkerRecord, ...]) -> Record:
        return cls(
            launch.job,
            launch.generation,
            launch.name,
            launch.world_size,
            launch.task.cooperative,
            launch.task.grace_s,
            launch.task.max_s,
            boot(),
            workers,
            launch.task.central,
        )

    def write(self, directory: Path) -> None:
        write_json(directory / RECORD, {"version": VERSION, **asdict(self)})

    @classmethod
    def read(cls, directory: Path) -> Record | None:
        """None where there is none that this version can read."""
        said = read_json(directory / RECORD)
        if not isinstance(said, dict) or said.pop("version", None) != VERSION:
            return None
        try:
            return cls(**{**said, "workers": tuple(WorkerRecord(**worker) for worker in said["workers"])})
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Stop:
    """A launch that was asked to stop. `deadline` is by the agent's clock, which is the machine's monotonic one."""

    deadline: float
    why: str  # for people, when it is killed at the deadline
    asked: bool  # by a lease that ended, and not because a sibling failed
    signalled: bool = False  # sent SIGTERM too, though it may know its lease: it had not looked at it yet

    def write(self, directory: Path) -> None:
        write_json(directory / STOP, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> Stop | None:
        said = read_json(directory / STOP)
        return cls(**said) if isinstance(said, dict) else None


def read_ended(directory: Path) -> Ended | None:
    said = read_json(directory / ENDED)
    return Ended(**said) if isinstance(said, dict) else None


def launches(jobs: Path) -> Iterator[tuple[int, int, Path]]:
    """Job, generation and directory of all that were launched here, earlier generations first."""
    for job in sorted(jobs.iterdir(), key=lambda path: path.name):
        if not _NUMBER.fullmatch(job.name):
            continue
        generations = [path for path in job.iterdir() if _NUMBER.fullmatch(path.name)]
        for directory in sorted(generations, key=lambda path: int(path.name)):
            yield int(job.name), int(directory.name), directory


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
