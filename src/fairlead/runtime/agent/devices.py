"""The accelerators (GPUs) of a node: detected through NVML (extra `nvml`), or given as in "v100:4"; NVIDIA's Multi-Process
Service for those that jobs share; and what is used of the node's CPU, memory and disk. Where an engine has given devices to the
agent, it uses only those. Other modules know an accelerator by its index on the node, from 0."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fairlead.core.errors import InputError, install
from fairlead.core.type_names import accelerator_type_of
from fairlead.files import remove
from fairlead.profiling.meter import text_of, visible
from fairlead.profiling.sharing_mode import MPS_CONTROL
from fairlead.runtime.agent.agent_errors import NodeError, node_errors
from fairlead.runtime.protocol.messages import Heartbeat, HostUsage, LaunchUsage

if TYPE_CHECKING:
    from fairlead.runtime.agent.launch import AgentLaunch

_TYPE_AND_COUNT = re.compile(r"([A-Za-z][A-Za-z0-9._-]*):([1-9][0-9]{0,3})")
_MPS_TIMEOUT_S = 10.0
HOST_PERIOD_S = 15.0  # between two samples of the host
MAX_LAUNCHES = 1000  # in a sample
_GB = 2.0**30
_IDLE = (3, 4)  # idle and waiting for a disk, in the line of all CPUs in /proc/stat
_OWN_TIMES = 8  # before the time of guests, which counts twice


CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
_GIVEN_BY = (CUDA_DEVICES, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # the first that is set counts
_DEVICE = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+")
_NO_ENVIRONMENT: Mapping[str, str] = {}


def given_devices(environment: Mapping[str, str]) -> tuple[str, list[str] | None]:
    """The devices that an engine such as Slurm has given to this process, by number or UUID, and the variable that says so;
    None: it says nothing. As for CUDA, the list ends at the first word that names no device."""
    variable = next((name for name in _GIVEN_BY if name in environment), "")
    if not variable:
        return "", None
    words = [word.strip() for word in environment[variable].split(",")]
    return variable, list(takewhile(_DEVICE.fullmatch, words))


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device of the node."""

    device: str  # its name in CUDA_VISIBLE_DEVICES
    memory_gb: float = 0.0  # 0: unknown
    identity: str = ""  # its UUID, if it has one


class NodeAccelerators:
    """All accelerators of a node; they have one type, `type_name`."""

    def __init__(
        self, type_name: str, devices: tuple[Accelerator, ...], nvml: Any = None, handles: tuple[Any, ...] = ()
    ) -> None:
        self.type_name, self.devices = type_name, devices
        self._nvml, self._handles = nvml, handles

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = _NO_ENVIRONMENT) -> NodeAccelerators:
        """The accelerators of a text such as "v100:4": the first ones that `environment` allows, if it says so. Raises
        `InputError`: it allows less."""
        match = _TYPE_AND_COUNT.fullmatch(text)
        if match is None:
            raise InputError("--accelerators", "TYPE:COUNT, as in 'v100:4'", value=text, field="accelerators")
        count, (variable, given) = int(match[2]), given_devices(environment)
        names = [str(number) for number in range(count)] if given is None else given[:count]
        if len(names) < count:
            allowed = f"{len(names)} ({','.join(names)})" if names else "none"
            expected = (
                f"no more GPUs than {variable} allows, which is {allowed}; pass fewer, or start the agent without {variable}"
            )
            raise InputError("--accelerators", expected, value=text, field="accelerators")
        return cls(match[1], tuple(Accelerator(name, identity="" if name.isdigit() else name) for name in names))

    @classmethod
    def detect(cls, environment: Mapping[str, str] = os.environ) -> NodeAccelerators:
        """The accelerators that NVML finds and the environment allows."""
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise NodeError("NVML", f"nvidia-ml-py is not installed: {install('nvml')}; or pass --accelerators") from error
        try:
            nvml.nvmlInit()
            all_handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            identities = [text_of(nvml.nvmlDeviceGetUUID(handle)) for handle in all_handles]
            _, given = given_devices(environment)
            chosen = visible(identities, {} if given is None else {CUDA_DEVICES: ",".join(given)})
            handles = tuple(all_handles[index] for index in chosen)
            names = {accelerator_type_of(text_of(nvml.nvmlDeviceGetName(handle))) for handle in handles}
            devices = tuple(
                Accelerator(str(index), nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, identities[index])
                for index, handle in zip(chosen, handles, strict=True)
            )
        except nvml.NVMLError as error:
            raise NodeError("NVML", f"{error}; pass --accelerators on a node without GPUs") from error
        if len(names) != 1:
            types = ", ".join(sorted(names)) or "no GPU"
            raise NodeError("NVML", f"found {types}: a node has GPUs of one type; choose with CUDA_VISIBLE_DEVICES")
        return cls(names.pop(), devices, nvml, handles)

    def __len__(self) -> int:
        return len(self.devices)

    def samples(self) -> list[tuple[float, float]]:
        """The utilization (0 to 1) and used GB of all accelerators; empty if one cannot be measured."""
        taken = []
        try:
            for handle in self._handles:
                utilization = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                taken.append((utilization, self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30))
        except getattr(self._nvml, "NVMLError", ()):  # it fell off the bus, or does not support this
            return []
        return taken

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, ()


def node_has(type_name: str, count: int) -> bool:
    """Whether NVML finds exactly these accelerators: then an agent can detect and measure them."""
    try:
        found = NodeAccelerators.detect()
    except NodeError:
        return False
    try:
        return (found.type_name, len(found)) == (type_name, count)
    finally:
        found.close()


class HostResources(NamedTuple):
    """What a node has besides its accelerators, and the memory of each of those; 0: unknown."""

    cpus: float = 0.0
    memory_gb: float = 0.0
    gpu_memory_gb: float = 0.0


def host_resources(accelerators: NodeAccelerators, meminfo: Path = Path("/proc/meminfo")) -> HostResources:
    """The resources of this machine. Of simulated accelerators, several nodes share a machine: all is unknown."""
    memory_gb = min((device.memory_gb for device in accelerators.devices), default=0.0)
    if not memory_gb:
        return HostResources()
    try:
        found = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        found = None
    return HostResources(float(os.cpu_count() or 0), int(found[1]) / 2**20 if found else 0.0, memory_gb)


class MeasuredAgent(Protocol):
    """What a heartbeat needs of an agent's supervisor."""

    @property
    def accelerators(self) -> NodeAccelerators: ...

    @property
    def limits(self) -> str: ...

    def running(self) -> list[AgentLaunch]: ...


class HostMeter:
    """Samples what is used of an agent's machine besides its accelerators: CPU, memory and the disk with the folder `root`, and
    CPU and memory of launches with control groups. A sample is a few reads of small files. CPU times are compared with those of
    the sample before; what cannot be read is missing."""

    def __init__(self, root: Path, proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, proc
        self._next_s = -math.inf
        self._times: tuple[int, int] | None = None  # of all CPUs: busy, and all
        self._used: dict[tuple[int, int], tuple[float, float]] = {}  # by launch: when, and CPU seconds

    def heartbeat(self, supervisor: MeasuredAgent, now: float, *, with_host: bool) -> Heartbeat:
        """Return a heartbeat with what the accelerators use, and sometimes with a sample of the host."""
        samples = supervisor.accelerators.samples()
        used, memory_gb = tuple(used for used, _ in samples), tuple(gb for _, gb in samples)
        host = None
        if with_host and now >= self._next_s:
            self._next_s = now + HOST_PERIOD_S
            host = self.sample(supervisor.running(), now)
        return Heartbeat(used, memory_gb, supervisor.limits, host)

    def sample(self, launches: Iterable[AgentLaunch], now: float) -> HostUsage:
        """Return a sample now."""
        memory_gb, memory_total_gb = self._memory()
        disk_gb, disk_total_gb = self._disk()
        usages = self._launches(launches, now)
        return HostUsage(self._cpu(), self._load(), memory_gb, memory_total_gb, disk_gb, disk_total_gb, usages)

    def _cpu(self) -> float | None:
        before, self._times = self._times, None
        with contextlib.suppress(OSError, ValueError):
            name, *words = _first_line(self._proc / "stat").split()
            times = [int(word) for word in words[:_OWN_TIMES]]
            if name == "cpu" and len(times) > max(_IDLE):
                self._times = sum(times) - sum(times[place] for place in _IDLE), sum(times)
        if before is None or self._times is None or self._times[1] <= before[1]:
            return None
        busy = (self._times[0] - before[0]) / (self._times[1] - before[1])
        return round(min(max(busy, 0.0), 1.0), 3)

    def _load(self) -> float | None:
        try:
            return max(0.0, float(_first_line(self._proc / "loadavg").split()[0]))
        except (OSError, ValueError, IndexError):
            return None

    def _memory(self) -> tuple[float | None, float | None]:
        """Used and all; what the kernel can free at once is not used."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            found = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines[:20])}
            total, available = found["MemTotal"], found["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return None, None
        return _gb(total - available), _gb(total)

    def _disk(self) -> tuple[float | None, float | None]:
        """Used and all, as for users other than root, who cannot use what is reserved."""
        try:
            about = os.statvfs(self._root)
        except OSError:
            return None, None
        used = (about.f_blocks - about.f_bfree) * about.f_frsize
        return _gb(used), _gb(used + about.f_bavail * about.f_frsize)

    def _launches(self, launches: Iterable[AgentLaunch], now: float) -> tuple[LaunchUsage, ...]:
        before, self._used = self._used, {}
        found: list[LaunchUsage] = []
        for launch in launches:
            group = next((Path(worker.record.cgroup).parent for worker in launch.workers if worker.record.cgroup), None)
            if group is None or len(found) >= MAX_LAUNCHES:
                continue
            cpus = memory_gb = None
            with contextlib.suppress(OSError, ValueError):
                memory_gb = _gb(int(_first_line(group / "memory.current")))
            with contextlib.suppress(OSError, ValueError, IndexError):
                seconds = int(_first_line(group / "cpu.stat").split()[1]) / 1e6  # usage_usec
                self._used[launch.key] = now, seconds
                then, earlier = before.get(launch.key, (now, seconds))
                cpus = round(max(0.0, seconds - earlier) / (now - then), 2) if now > then else None
            found.append(LaunchUsage(*launch.key, cpus, memory_gb))
        return tuple(found)


def _first_line(path: Path) -> str:
    with open(path) as file:
        return file.readline()


def _gb(size: int) -> float:
    return round(max(0, size) / _GB, 2)


class MultiProcessService:
    """One MPS control daemon per shared accelerator, started when a second job comes to it. Without `nvidia-cuda-mps-control`,
    jobs that share an accelerator are time-sliced by CUDA. A job that came first stays outside the service until its next
    launch."""

    def __init__(self, root: Path, path: str | None = None) -> None:
        self._root = root
        self._program = shutil.which(MPS_CONTROL, path=path)
        self._started: dict[int, dict[str, str]] = {}

    def variables(self, index: int, accelerator: Accelerator) -> dict[str, str]:
        """Environment variables of a worker on a shared accelerator; starts the daemon at the first call. The daemon renumbers
        devices, so both sides name them by UUID. By number, a worker whose daemon has failed would run on another accelerator;
        so an accelerator without a UUID gets no daemon."""
        if self._program is None or not accelerator.identity:
            return {}
        if index not in self._started:
            pipes, logs = self._root / f"{index}-pipe", self._root / f"{index}-log"
            with node_errors(self._root):
                for folder in (pipes, logs):
                    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            variables = {
                "CUDA_VISIBLE_DEVICES": accelerator.identity,
                "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
                "CUDA_MPS_LOG_DIRECTORY": str(logs),
            }
            # Fails where a daemon of an earlier agent still runs, which serves as well.
            self._control(["-d"], variables)
            self._started[index] = variables
        return self._started[index]

    def close(self) -> None:
        """End all daemons, also those of an earlier agent on this root."""
        if self._program is None:
            return
        for pipes in sorted(self._root.glob("*-pipe")):
            if self._control([], {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}, b"quit\n"):
                remove(pipes)
        self._started.clear()

    def _control(self, arguments: list[str], variables: dict[str, str], command: bytes = b"") -> bool:
        """Run the control program; False: it did not finish in time."""
        assert self._program is not None
        with node_errors(self._program):
            try:
                subprocess.run(
                    [self._program, *arguments],
                    input=command,
                    env={"PATH": "/usr/bin:/bin", **variables},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_MPS_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False
        return True
