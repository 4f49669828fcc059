"""Orders of the control plane to an agent, and the agent's reports, as plain values. They know nothing of how they are sent. A
launch is identified by its job number and its *generation*: how often the job was started, counted from 1. A report about an
older generation is out of date and is dropped. Reports come from nodes whose jobs are not trusted: the types of their fields
have bounds, so that everything that is decoded can be journaled and read back."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol, TypeAlias

from pydantic import Field

from fairlead.core.job import LAUNCH_FAILED

MAX_METRICS = 32  # different metric names per job; agents and the control plane ignore further names
MAX_COUNT = 2**53  # the largest count that a float represents exactly
MAX_TEXT = 10_000  # characters
MAX_METRIC_NAME = 200

Count: TypeAlias = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Rank: TypeAlias = Annotated[int, Field(ge=0, lt=1_000_000)]
ExitCode: TypeAlias = Annotated[int, Field(ge=-64, le=255)]  # negative: the signal
Amount: TypeAlias = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Text: TypeAlias = Annotated[str, Field(max_length=MAX_TEXT)]

_FILES = re.compile(r"\.{0,2}/|.*\.sif\Z|(library|oras|shub)://")


def bounded_text(text: object) -> str:
    """A text that can be sent and journaled: shortened, and without incomplete characters, such as of a file's name."""
    return str(text)[:MAX_TEXT].encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the node that a container sees at `target`."""

    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Return the mount of a text such as `/data:/mnt/data:ro`. Raises `ValueError`: it is none."""
        source, *rest = text.split(":")
        mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
        target = rest[0] if rest else source
        sound = (path.startswith("/") and path.isprintable() and ".." not in path.split("/") for path in (source, target))
        if len(rest) > 1 or not all(sound):
            raise ValueError("HOST:CONTAINER or HOST:CONTAINER:ro with absolute paths, as in /data:/mnt/data:ro")
        if not posixpath.normpath(target).strip("/"):
            raise ValueError("a path in the container other than /")
        return cls(source, target, mode == "ro")


@dataclass(frozen=True, slots=True)
class Container:
    """The container that a command runs in."""

    image: str
    runtime: str = ""  # apptainer, podman or docker; empty: the first of these that the node has
    mounts: tuple[Mount, ...] = ()
    directory: str = ""  # where the command runs in the container; empty: as the task says
    environment: Mapping[str, str] = field(default_factory=dict)  # overrides that of the task

    @property
    def is_file(self) -> bool:
        """Whether the image is a file or folder of the node, or of a kind that only apptainer has."""
        return _FILES.match(self.image) is not None


NO_CONTAINERS = "fairlead: the agent of this node is too old for containers: update it"
"""The prefix of tasks with containers. An agent that knows no containers fails to find such a program, and so does not run the
command outside of its container. Agents that do ignore it."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to run. `command` is a program and its arguments."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""  # working directory; empty: a directory of its own with the unpacked code
    code: str = ""  # digest of a code archive that was sent before; empty: none
    prefix: tuple[str, ...] = ()  # comes before the command; not used with a container
    cooperative: bool = True  # it reads its lease; otherwise it gets SIGTERM and has the grace period to save
    grace_s: float = 30.0  # from revocation to SIGKILL
    max_steps: int = 0  # of one lease, 0: no bound; each renewal adds the same amount
    max_s: float = 0.0
    central: bool = False  # at its bounds it waits for the control plane's answer instead of leaving
    shell: bool = False  # `command` begins with bash; a node without it uses sh
    output: str = ""  # a file that also gets the output, relative to the working directory; empty: only the log
    outputs: tuple[str, ...] = ()  # patterns of files to keep when it has ended
    cpus: float = 0.0  # that each worker needs; 0: not specified. What a plan assigns comes before it
    host_memory_gb: float = 0.0  # likewise
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what it asks of each engine, by its name
    container: Container | None = None  # that the command runs in

    def on_engine(self, *, runs_images: bool) -> Task:
        """Return the task for an agent that an engine has started: where the engine runs images, in the container already."""
        task, container = replace(self, engines={}), self.container
        if container is None or not runs_images:
            return task
        environment = {**self.environment, **container.environment}
        directory = self.directory if self.code else container.directory or self.directory
        return replace(task, container=None, prefix=(), environment=environment, directory=directory)


@dataclass(frozen=True, slots=True)
class RequestRouting:
    """How requests are distributed to the workers of a serving launch."""

    batch: int  # requests at once
    rate: float  # requests per second, to all workers together
    shares: tuple[float, ...]  # of these requests, by rank


@dataclass(frozen=True, slots=True)
class LaunchParameters:
    """What a plan assigns to a launch besides its accelerators."""

    batch_size: int = 0  # of the whole gang; 0: the job's own, -1: the job tunes it
    cpus: float = 0.0  # per worker; 0: not specified
    host_memory_gb: float = 0.0  # per worker; 0: not specified
    colocated: bool = False  # other jobs will run on its accelerators from the start
    routing: RequestRouting | None = None  # of a serving launch


@dataclass(frozen=True, slots=True)
class OfLaunch:
    """An order or a report about one launch, which `key` identifies."""

    job: Count
    generation: Count

    @property
    def key(self) -> tuple[int, int]:
        return self.job, self.generation


@dataclass(frozen=True, slots=True)
class Launch(OfLaunch):
    """Start some workers of a job on this node."""

    name: str
    task: Task
    ranks: tuple[int, ...]  # the workers that run here
    accelerators: tuple[int, ...]  # on this node, from 0; one for each of `ranks`
    world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0  # for the job's own rendezvous (torchrun's MASTER_PORT)
    gang_port: int = 0  # where the leader of the gang listens; 0: the gang is not coordinated
    gang_token: str = ""  # shared secret of the gang's workers
    checkpoints: str = ""  # the job's directory for checkpoints; it outlives a launch
    nodes: int = 1  # of the whole gang
    parameters: LaunchParameters = field(default_factory=LaunchParameters)
    user: str = ""  # that submitted it; empty: not known, from a control plane of a former version


@dataclass(frozen=True, slots=True)
class Revoke(OfLaunch):
    """Let a job save and stop; kill what is left of it after its grace period."""


@dataclass(frozen=True, slots=True)
class Kill(OfLaunch):
    """End a job at once."""


@dataclass(frozen=True, slots=True)
class Extend(OfLaunch):
    """Renew a lease: its bounds from now on, counted from the start of the launch. `renewal` counts from 1; a renewal that was
    applied before changes nothing."""

    renewal: int
    max_steps: int
    max_s: float


@dataclass(frozen=True, slots=True)
class Reroute(OfLaunch):
    """Distribute requests differently from now on; the workers stay."""

    routing: RequestRouting


Order: TypeAlias = Launch | Revoke | Kill | Extend | Reroute


class OrderTransport(Protocol):
    """How orders reach agents. An order to a node that is not connected is lost; `compare` repeats it later."""

    def send(self, node: int, order: Order) -> None: ...

    def address_of(self, node: int) -> str:
        """Return the address at which other nodes reach a node."""
        ...

    def silent_s(self, node: int) -> float:
        """Return how long a node's agent is unreachable; 0 while it is connected."""
        ...

    def remove(self, node: int) -> None:
        """End the session of a node that was removed."""
        ...


@dataclass(frozen=True, slots=True)
class Progress(OfLaunch):
    """The progress of a job, from its first worker here. `rate` is in steps per second of this launch, 0 before the second
    step."""

    steps: Count
    saved: Count
    rate: Amount
    batch_size: Count = 0


@dataclass(frozen=True, slots=True)
class Metric(OfLaunch):
    """A value that a job reported; infinite if it was too large, or not a number."""

    name: Annotated[str, Field(max_length=MAX_METRIC_NAME)]
    value: float


@dataclass(frozen=True, slots=True)
class RenewalRequest(OfLaunch):
    """Three quarters of a lease are used: the job asks for this renewal, counted from 1. Repeated until it is answered."""

    renewal: Count


@dataclass(frozen=True, slots=True)
class Ended(OfLaunch):
    """All workers of a job on this node have ended.

    `yielded`: they stopped because their lease was revoked, or were killed because they did not stop. `code` is the exit status
    of the first worker that failed or was killed (negative: the signal), or 0."""

    code: ExitCode
    yielded: bool
    steps: Count
    saved: Count
    why: Text = ""  # for users, such as "killed 30 s after it was asked to stop"
    rank: Rank = 0  # of the first worker that failed
    permanent: bool = False  # its command can never be executed: another attempt would fail too
    ended_at: Amount = field(default=0.0, compare=False)  # Unix time on the agent's node; 0: not known
    ago_s: Amount = field(default=0.0, compare=False)  # how long before it was sent; the control plane may have been away

    @property
    def could_not_start(self) -> bool:
        """Whether the node could not start the launch, without any order to stop it."""
        return self.yielded and self.code == LAUNCH_FAILED


Report: TypeAlias = Progress | Metric | RenewalRequest | Ended


def is_repeated(report: Report) -> bool:
    """Return whether an agent sends a report again until it is acknowledged. Progress is soon out of date."""
    return isinstance(report, Ended | Metric)
