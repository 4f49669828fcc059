"""The contract between the control plane and an engine that starts processes, such as Slurm or Kubernetes.

Each part of a launch on one machine is an object of the engine (a Slurm job, a Pod) that runs an agent for this one launch. The
agent connects to the control plane and gets its orders there, so the command of a job is never in the engine's object, and an
object that the engine starts twice is harmless. A driver only starts and stops these objects, and says what it sees. One thread
calls it; it may wait for the engine.

A driver is a class in the entry-point group `fairlead.drivers`. `fairlead serve --engine NAME:KEY=VALUE,...` creates it with
these keys as arguments. `fairlead.testing.contracts.driver_contract` tests it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from fairlead.config.registry import Registry
from fairlead.core.errors import FairleadError, InputError
from fairlead.runtime.protocol.orders import Container


class EngineUnavailable(FairleadError):
    """The engine does not answer now. The call may or may not have had an effect, and is repeated later."""


class EngineRefused(FairleadError):
    """The engine will never accept this launch: a missing partition, a bad image, no permission."""


class LaunchKey(NamedTuple):
    """One part of one launch: a generation of a job on one machine, of one journal."""

    journal: str
    job: int
    generation: int
    machine: str

    @property
    def label(self) -> str:
        """A name for the engine's object: at most 63 letters, digits and '-'. It is the same for equal keys only."""
        digest = hashlib.sha256("\0".join(map(str, self)).encode()).hexdigest()
        return f"fairlead-{self.job}-{self.generation}-{digest[:16]}"

    @property
    def text(self) -> str:
        """The key for a comment or an annotation of the object; `parse` reads it."""
        return f"{self.journal}/{self.job}/{self.generation}/{self.machine}"

    @classmethod
    def parse(cls, text: str) -> LaunchKey | None:
        """Return the key of a text; None if it is none."""
        found = re.fullmatch(r"([^/]*)/([0-9]{1,15})/([0-9]{1,15})/([^/]+)", text)
        return cls(found[1], int(found[2]), int(found[3]), found[4]) if found else None


def create_driver(text: str, registry: Registry) -> EngineDriver:
    """Create the driver of a text such as `slurm:partition=gpu,account=ml`. Raises `InputError`: it has no such option."""
    name, _, rest = text.partition(":")
    driver = registry.load("driver", name)
    types = get_type_hints(driver)
    known = (
        {one.name for one in fields(driver) if one.init and one.repr and one.name in types}
        if is_dataclass(driver)
        else set(types)
    )
    options: dict[str, Any] = {}
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in known:
            raise InputError("--engine", f"{name}:KEY=VALUE,… with keys of {', '.join(sorted(known))}", value=word)
        try:
            options[key] = TypeAdapter(types[key]).validate_python(value)
        except (ValidationError, PydanticSchemaGenerationError):
            raise InputError("--engine", f"a value of type {types[key]} for {key}", value=value) from None
    created: EngineDriver = driver(**options)
    return created


class MachineState(StrEnum):
    """Whether launches may start on a machine."""

    READY = "ready"
    CORDONED = "cordoned"  # an operator of the engine wants it empty: its jobs save and move
    UNREACHABLE = "unreachable"  # nothing can start; what runs there may go on


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the engine that launches may use. Its node in the cluster has the same name."""

    name: str
    type: str  # of its GPUs, in lower case
    accelerators: int  # how many of them launches may use
    state: MachineState = MachineState.READY
    reason: str = ""  # of the state, in the engine's words
    until: float = math.inf  # Unix time at which the engine takes it away
    address: str = ""  # at which other machines reach it; empty: as its agents say
    cpus: float = 0.0  # 0: not known
    memory_gb: float = 0.0
    gpu_memory_gb: float = 0.0


class TaskState(StrEnum):
    """The state of the engine's object of one part of a launch."""

    WAITING = "waiting"  # accepted; its agent does not run yet
    RUNNING = "running"
    OVER = "over"  # the engine saw all its processes end
    UNKNOWN = "unknown"  # it disappeared, or its machine does not answer: it may still run


@dataclass(frozen=True, slots=True)
class EngineTask:
    """The engine's object of one part of a launch."""

    key: LaunchKey
    state: TaskState
    code: int = 0  # exit status of its agent, if it is over
    reason: str = ""  # why it waits or is over, in the engine's words
    own_fault: bool = False  # its job asked for something that does not exist, such as an image: no machine could start it
    preparing: bool = False  # it waits because its machine prepares it, as by pulling an image; then it starts there


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """What the engine starts on one machine: the agent of one part of a launch."""

    key: LaunchKey
    accelerators: tuple[int, ...]  # on the machine, from 0; engines that choose devices themselves take only their number
    arguments: tuple[str, ...] = ()  # of `fairlead`: the agent of this part
    token: str = field(default="", repr=False)  # FAIRLEAD_TOKEN of the agent; it is good for this key only


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """What all parts of a launch need."""

    name: str  # of the job, for people
    user: str = ""  # that submitted it
    cpus: float = 0.0  # for each GPU; 0: not specified
    memory_gb: float = 0.0  # for each GPU; 0: not specified
    grace_s: float = 30.0  # from the request to stop until its processes may be killed
    options: Mapping[str, Any] = field(default_factory=dict)  # the engine's own part of the task file
    container: Container | None = None  # of its processes, for an engine that runs images


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do."""

    picks_devices: bool = False  # the plan's GPUs are used; otherwise as many as it has, chosen by the engine
    can_share: bool = False  # two launches on one GPU
    runs_images: bool = False  # its objects are containers; otherwise agents start those of jobs
    poll_s: float = 5.0  # how often `observe` is called, at least
    starts_per_s: float = 10.0


class EngineDriver(Protocol):
    """Starts, stops and observes the agents of launches on an engine. Every method may raise `EngineUnavailable`."""

    name: str  # of the engine, for people: "slurm"
    capabilities: Capabilities

    def observe(self, journal: str) -> tuple[Sequence[Machine], Sequence[EngineTask]]:
        """Return all machines, and all objects of a journal that exist or have ended not long ago."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` from any thread whenever `observe` may return something new, where the engine can tell."""
        ...

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        """Start the parts of one launch, all in one call. A part that was started before stays as it is.

        Raises:
            EngineRefused: The engine will never accept it. No part of it runs.
        """
        ...

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        """End a part: SIGTERM, and SIGKILL after the grace. One that does not exist is ended already."""
        ...

    def log(self, key: LaunchKey, offset: int, limit: int) -> bytes | None:
        """Return a piece of the output of a part's agent; None if there is none."""
        ...

    def forget(self, key: LaunchKey) -> None:
        """A part is over: what is left of it may be removed, at once or after a while in which its output can be read."""
        ...

    def close(self) -> None:
        """End threads and connections; parts keep running."""
        ...
