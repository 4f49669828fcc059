"""Utilization and memory of a GPU while something runs, sampled from NVML by a thread, and the activity of its units where NVML
counts that. Without NVML, as on a CPU, there are no measurements."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

_ACTIVITIES = {"sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10, "fp32_active": 12}
"""Our names and NVML's numbers of GPM metrics (Hopper and later), in percent of the time between two samples: active
multiprocessors, occupancy, tensor cores, memory bandwidth, single-precision units. Plain utilization is 100 % as soon as any
kernel runs, even on one multiprocessor."""


class _Activity:
    """Unit activity from its creation to `summary`; empty if the device or driver does not count it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle, self._before = nvml, handle, None
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._before = self._sample()
        except Exception:  # an older library or driver, or missing permission
            self._before = None

    def summary(self) -> dict[str, float]:
        """The metrics by name."""
        if self._before is None:
            return {}
        try:
            after = self._sample()
            request = self._nvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(_ACTIVITIES)
            request.sample1, request.sample2 = self._before, after
            for place, number in enumerate(_ACTIVITIES.values()):
                request.metrics[place].metricId = number
            found = self._nvml.nvmlGpmMetricsGet(request).metrics
            values = {name: float(found[place].value) for place, name in enumerate(_ACTIVITIES) if not found[place].nvmlReturn}
            for sample in (self._before, after):
                self._nvml.nvmlGpmSampleFree(sample)
        except Exception:  # as above
            values = {}
        self._before = None
        return values

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample


def visible(names: list[str], environment: Mapping[str, str]) -> list[int]:
    """The indices of the devices that CUDA sees, in its order, by `CUDA_VISIBLE_DEVICES`; `names` are the UUIDs of all
    devices."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(range(len(names)))
    chosen: list[int] = []
    for word in filter(None, (part.strip() for part in setting.split(","))):
        places = [int(word)] if word.isdigit() else [place for place, name in enumerate(names) if name.startswith(word)]
        if len(places) != 1 or places[0] >= len(names):  # CUDA too stops at the first unknown device
            break
        chosen.append(places[0])
    return chosen


def text_of(text: str | bytes) -> str:
    """A text of NVML, which some versions of its library return as bytes."""
    return text.decode() if isinstance(text, bytes) else text


_INTERVAL_S = 0.1


class Meter:
    """`with Meter("cuda:1") as meter: …`, then `meter.summary()`; a CPU gives no measurements."""

    def __init__(self, device: str) -> None:
        self._handle: Any = None
        self._samples: list[tuple[int, int, int]] = []
        self._activity: _Activity | None = None
        self._active: dict[str, float] = {}
        self._stop = threading.Event()
        kind, _, number = device.partition(":")
        if kind == "cuda":
            try:
                self._nvml: Any = importlib.import_module("pynvml")
                self._handle = _handle(self._nvml, int(number or 0))
            except Exception:  # no library, driver or device
                self._handle = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._samples.clear()
        if self._handle is not None:
            self._activity = _Activity(self._nvml, self._handle)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._activity is not None:
            self._active = self._activity.summary()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            try:
                rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            except self._nvml.NVMLError:  # such as a partition of a device, or one that fell off the bus
                return
            self._samples.append((rates.gpu, rates.memory, memory.used))

    def summary(self) -> dict[str, float]:
        """Means in percent, and the maximum memory in use on the whole device; empty without samples."""
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
        """The device and driver."""
        found = {"host_cpus": str(os.cpu_count())}
        if self._handle is not None:
            name, driver = self._nvml.nvmlDeviceGetName(self._handle), self._nvml.nvmlSystemGetDriverVersion()
            found |= {"device": text_of(name), "driver": text_of(driver)}
        return found


def _handle(nvml: Any, number: int) -> Any:
    """The NVML handle of CUDA's device of this number."""
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
    return handles[visible([text_of(nvml.nvmlDeviceGetUUID(handle)) for handle in handles], os.environ)[number]]
