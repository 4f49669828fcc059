"""What of an accelerator is at work, beside whether anything is: NVML's utilization says that some kernel ran, and that is
100 % for a kernel on one multiprocessor of a hundred. Hopper and later count multiprocessors and bytes too (NVML's GPM)."""

from __future__ import annotations

from typing import Any

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
