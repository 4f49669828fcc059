"""The accelerators of a node: found through NVML (extra `nvml`), or spelled as in "v100:4" where there are none to find. An
accelerator is known to the rest by its place on the node, from 0."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.core.errors import InputError, install
from fairlead.profiling.meter import text_of, visible
from fairlead.runtime.agent.agent_errors import NodeError

_SPELLED = re.compile(r"([A-Za-z][A-Za-z0-9._-]*):([1-9][0-9]{0,3})")
_FORM_FACTORS = re.compile(r"^(sxm\d*|pcie|nvl\d*|\d+gb)$")
_MODEL = re.compile(r"^[a-z]+\d+[a-z]*$")


@dataclass(frozen=True, slots=True)
class Accelerator:
    device: str  # what CUDA_VISIBLE_DEVICES calls it
    memory_gb: float = 0.0  # 0: not known
    identity: str = ""  # its UUID, where there is one


@dataclass(frozen=True, slots=True)
class Sample:
    """How busy an accelerator is at this moment, 0 to 1, and how much of its memory is taken."""

    accelerator: int
    utilization: float
    memory_used_gb: float
    memory_gb: float


class NodeAccelerators:
    """`type_name` is that of all of them: a node has accelerators of one type."""

    def __init__(
        self, type_name: str, devices: tuple[Accelerator, ...], nvml: Any = None, handles: tuple[Any, ...] = ()
    ) -> None:
        self.type_name, self.devices = type_name, devices
        self._nvml, self._handles = nvml, handles

    @classmethod
    def parse(cls, text: str) -> NodeAccelerators:
        match = _SPELLED.fullmatch(text)
        if match is None:
            raise InputError("--accelerators", "a type and how many, as in 'v100:4'", value=text, field="accelerators")
        return cls(match[1], tuple(Accelerator(str(number)) for number in range(int(match[2]))))

    @classmethod
    def detect(cls, environment: Mapping[str, str] = os.environ) -> NodeAccelerators:
        """What NVML sees, as far as `CUDA_VISIBLE_DEVICES` lets this process have it."""
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise NodeError("NVML", f"nvidia-ml-py is not installed: {install('nvml')}; or say --accelerators") from error
        try:
            nvml.nvmlInit()
            all_handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            identities = [text_of(nvml.nvmlDeviceGetUUID(handle)) for handle in all_handles]
            chosen = visible(identities, environment)
            handles = tuple(all_handles[index] for index in chosen)
            names = {accelerator_type_of(nvml.nvmlDeviceGetName(handle)) for handle in handles}
            devices = tuple(
                Accelerator(str(index), nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, identities[index])
                for index, handle in zip(chosen, handles, strict=True)
            )
        except nvml.NVMLError as error:
            raise NodeError("NVML", f"{error}; say --accelerators where there is none") from error
        if len(names) != 1:
            seen = ", ".join(sorted(names)) or "no accelerator"
            raise NodeError("NVML", f"found {seen}: a node has accelerators of one type; choose with CUDA_VISIBLE_DEVICES")
        return cls(names.pop(), devices, nvml, handles)

    def __len__(self) -> int:
        return len(self.devices)

    def samples(self) -> list[Sample]:
        """Empty where there is nothing to measure."""
        taken = []
        for place, handle in enumerate(self._handles):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                busy = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except self._nvml.NVMLError:  # it fell off the bus, or cannot tell: the others can
                continue
            taken.append(Sample(place, busy, memory.used / 2**30, memory.total / 2**30))
        return taken

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, ()


def node_has(type_name: str, many: int) -> bool:
    """Whether this machine has just these, as NVML sees it: then an agent need not be told, and can measure them."""
    try:
        found = NodeAccelerators.detect()
    except NodeError:
        return False
    try:
        return (found.type_name, len(found)) == (type_name, many)
    finally:
        found.close()


def accelerator_type_of(product: str | bytes) -> str:
    """'Tesla V100-SXM2-16GB' is a v100, 'NVIDIA GeForce RTX 3090' an rtx3090."""
    words = [
        word for word in re.split(r"[\s\-]+", text_of(product).lower()) if word not in ("nvidia", "tesla", "geforce", "quadro")
    ]
    words = [word for word in words if not _FORM_FACTORS.match(word)]
    models = [word for word in words if _MODEL.match(word)]
    return models[0] if models else "".join(words[:2]) or "gpu"
