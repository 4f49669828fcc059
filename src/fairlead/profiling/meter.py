"""What an accelerator says of itself while something runs: NVML's utilization and memory, sampled by a thread, and what of it
was at work where it counts that. Where there is no NVML (a CPU), there is nothing to say."""

from __future__ import annotations

import importlib
import os
import threading
from types import TracebackType
from typing import Any

from fairlead.profiling.activity import Activity
from fairlead.profiling.visible import text_of, visible

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
