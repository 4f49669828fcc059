"""What the control plane and an agent say to each other, as values. How they travel is not their business.

A launch of a job is known by its number and its *generation*: how often the job has been started, counted from 1. Whatever an
agent tells about an older generation than the present is out of date, and is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.core.job import LAUNCH_FAILED

MAX_METRICS = 32
"""Names under which one job reports something; of more, agents and the control plane take no notice."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to run. `command` is a program and its arguments, never a line for a shell."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""  # where it runs; empty: its own, which holds the unpacked code
    code: str = ""  # digest of an archive that was sent before; empty: none
    prefix: tuple[str, ...] = ()  # such as a container's: comes before the command
    cooperative: bool = True  # it looks at its lease; otherwise it is sent SIGTERM and has the grace to save
    grace_s: float = 30.0  # from revocation to SIGKILL
    max_steps: int = 0  # of one lease, 0: no bound; each renewal adds as much again
    max_s: float = 0.0
    central: bool = False  # at its bounds it waits for the control plane's answer, instead of leaving without one


@dataclass(frozen=True, slots=True)
class RequestRouting:
    """How requests are dealt out to the workers of a launch that serves them."""

    batch: int  # at once
    rate: float  # requests per second, to all of them
    shares: tuple[float, ...]  # of these, by rank


@dataclass(frozen=True, slots=True)
class LaunchParameters:
    """What a plan gives a launch besides its accelerators."""

    batch_size: int = 0  # of the whole gang; 0: the job's own, -1: it tunes it
    cpus: float = 0.0  # for each worker; 0: nothing was said
    host_memory_gb: float = 0.0  # likewise
    colocated: bool = False  # others are to run on its accelerators beside it, from the beginning on
    routing: RequestRouting | None = None  # where it serves requests


@dataclass(frozen=True, slots=True)
class Launch:
    """Start some workers of a job on this node."""

    job: int
    generation: int
    name: str
    task: Task
    ranks: tuple[int, ...]  # the workers that run here
    accelerators: tuple[int, ...]  # on this node, from 0; one for each of `ranks`
    world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0  # for the job's own rendezvous (torchrun's MASTER_PORT)
    gang_port: int = 0  # where the first worker tells the others when to stop; 0: nobody to tell
    gang_token: str = ""  # the secret by which they know each other
    checkpoints: str = ""  # the job's directory for checkpoints; it outlives a launch
    nodes: int = 1  # on which the whole gang stands
    parameters: LaunchParameters = field(default_factory=LaunchParameters)


@dataclass(frozen=True, slots=True)
class Revoke:
    """Let a job save and stop, and kill what is left of it after its grace."""

    job: int
    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a job at once; it is not wanted any more."""

    job: int
    generation: int


@dataclass(frozen=True, slots=True)
class Extend:
    """A lease is renewed: these are its bounds from now on, counted from the launch's beginning. `renewal` says which it is,
    counted from 1; one that was carried out before changes nothing."""

    job: int
    generation: int
    renewal: int
    max_steps: int
    max_s: float


@dataclass(frozen=True, slots=True)
class Reroute:
    """Requests are dealt out in another way from now on; the workers stay."""

    job: int
    generation: int
    routing: RequestRouting


Order: TypeAlias = Launch | Revoke | Kill | Extend | Reroute


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, by its first worker here. `rate` is in steps per second of this launch, 0 before the second step."""

    job: int
    generation: int
    steps: int
    saved: int
    rate: float
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Metric:
    """A job said something about itself."""

    job: int
    generation: int
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class RenewalRequest:
    """Three quarters of a lease are used: its holder asks for this renewal, counted from 1; said again until it is answered."""

    job: int
    generation: int
    renewal: int


@dataclass(frozen=True, slots=True)
class Ended:
    """All workers of a job on this node have ended. `yielded` where they left because the lease was over, or did not and were
    killed; `code` is the exit status of the first that failed or was killed (negative: the signal), or 0."""

    job: int
    generation: int
    code: int
    yielded: bool
    steps: int
    saved: int
    why: str = ""  # for people: what ended it, such as "killed 30 s after it was asked to stop"
    rank: int = 0  # of the first that failed

    @property
    def could_not_start(self) -> bool:
        """Whether the node could not begin it, of a launch that nobody asked to leave."""
        return self.yielded and self.code == LAUNCH_FAILED


Report: TypeAlias = Progress | Metric | RenewalRequest | Ended
