"""What an accelerator says of itself while something runs: NVML's utilization and memory, sampled by a thread, and what of it
was at work where it counts that. Where there is no NVML (a CPU), there is nothing to say."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

# What of an accelerator is at work, beside whether anything is: NVML's utilization says that some kernel ran, and that is
# 100 % for a kernel on one multiprocessor of a hundred. Hopper and later count multiprocessors and bytes too (NVML's GPM).

SEEN = {"sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10, "fp32_active": 12}
"""Names here, and NVML's numbers: multiprocessors with a kernel on them, warps of those there could be, tensor cores at work,
bytes to and from memory of those there could be, single-precision units at work. All in percent, over the time between two
looks."""


class Activity:
    """From its making until `told`. A device or driver that does not count has nothing to tell."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle, self._before = nvml, handle, None
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._before = self._look()
        except Exception:  # an older library or driver, or a right that is lacking: there is nothing to read
            self._before = None

    def told(self) -> dict[str, float]:
        if self._before is None:
            return {}
        try:
            after = self._look()
            asked = self._nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(SEEN)
            asked.sample1, asked.sample2 = self._before, after
            for place, number in enumerate(SEEN.values()):
                asked.metrics[place].metricId = number
            found = self._nvml.nvmlGpmMetricsGet(asked).metrics
            told = {name: float(found[place].value) for place, name in enumerate(SEEN) if not found[place].nvmlReturn}
            for sample in (self._before, after):
                self._nvml.nvmlGpmSampleFree(sample)
        except Exception:  # as above
            told = {}
        self._before = None
        return told

    def _look(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample


# Which of the accelerators that NVML sees are CUDA's, in CUDA's order. It asks neither.


def visible(names: list[str], environment: Mapping[str, str]) -> list[int]:
    """Their places among all, whose UUIDs are given, as far as `CUDA_VISIBLE_DEVICES` lets this process have them."""
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return list(range(len(names)))
    chosen: list[int] = []
    for word in filter(None, (part.strip() for part in said.split(","))):
        places = [int(word)] if word.isdigit() else [place for place, name in enumerate(names) if name.startswith(word)]
        if len(places) != 1 or places[0] >= len(names):  # CUDA too stops at the first that it does not know
            break
        chosen.append(places[0])
    return chosen


def text_of(said: str | bytes) -> str:
    """NVML's texts are bytes in some versions of its library."""
    return said.decode() if isinstance(said, bytes) else said


EVERY_S = 0.1


class Meter:
    """`with Meter("cuda:1") as meter: …`, then `meter.told()`. Of a CPU it tells nothing, whatever else the machine has."""

    def __init__(self, device: str) -> None:
        self._handle: Any = None
        self._samples: list[tuple[int, int, int]] = []
        self._activity: Activity | None = None
        self._active: dict[str, float] = {}
        self._stop = threading.Event()
        kind, _, number = device.partition(":")
        if kind == "cuda":
            try:
                self._nvml: Any = importlib.import_module("pynvml")
                self._handle = _handle(self._nvml, int(number or 0))
            except Exception:  # no library, no driver, no device: whatever it is, there is nothing to read
                self._handle = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._samples.clear()
        if self._handle is not None:
            self._activity = Activity(self._nvml, self._handle)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._activity is not None:
            self._active = self._activity.told()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            except self._nvml.NVMLError:  # a part of a device does not tell, nor does one that fell off the bus
                return
            self._samples.append((rates.gpu, rates.memory, memory.used))

    def told(self) -> dict[str, float]:
        """Means in percent, and the most memory in use on the whole device; empty where nothing was read."""
        if not self._samples:
            return {}
        gpu, memory, used = zip(*self._samples)
        return {
            "utilization": sum(gpu) / len(gpu),
            "memory_utilization": sum(memory) / len(memory),
            "device_memory_mb": max(used) / 2**20,
            "samples": float(len(gpu)),
            **self._active,
        }

    def device(self) -> dict[str, str]:
        """What was measured on."""
        found = {"host_cpus": str(os.cpu_count())}
        if self._handle is not None:
            name, driver = self._nvml.nvmlDeviceGetName(self._handle), self._nvml.nvmlSystemGetDriverVersion()
            found |= {"device": text_of(name), "driver": text_of(driver)}
        return found


def _handle(nvml: Any, number: int) -> Any:
    """Of CUDA's accelerator of this number: those that it may not see have none."""
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
    return handles[visible([text_of(nvml.nvmlDeviceGetUUID(handle)) for handle in handles], os.environ)[number]]
