"""How fast the host launches work: microseconds of a Python operation, of an operator on the CPU, and of a kernel on a GPU.
Steps of small models take as long as their launches, so predictions of speed need these figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROUNDS, _LAUNCHES = 9, 250  # a GPU's queue holds about 1,000 launches, beyond which a launch waits


@dataclass(frozen=True)
class HostProbe:
    """Medians in microseconds."""

    host_cpu: str
    host_python_us: float  # one call of a Python function
    host_dispatch_us: float  # one PyTorch operator on a tensor of the CPU
    host_step_us: float  # one layer of a small training on the CPU: forward, backward and update
    host_launch_us: float | None = None  # one kernel on the GPU; None without a GPU


def probe_host(device: str = "cuda") -> HostProbe:
    """Measure this host for about two seconds. Without CUDA, nothing is launched on a GPU."""
    import torch

    layers = 16
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    batch, small = torch.ones(8, 8), torch.ones(8)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).sum().backward()
        optimizer.step()

    launch = None
    if device.startswith("cuda") and torch.cuda.is_available():
        tiny = torch.ones(8, device=device)
        launch = _median_us(lambda: tiny.add_(1.0), _LAUNCHES, torch.cuda.synchronize)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return HostProbe(
            host_cpu_model(),
            _median_us(_nothing, 100 * _LAUNCHES),
            _median_us(lambda: small.add_(1.0), 10 * _LAUNCHES),
            _median_us(train, _LAUNCHES // 5) / layers,
            launch,
        )
    finally:
        torch.set_num_threads(threads)


def host_cpu_model() -> str:
    """The name of this host's CPU; empty if the system does not say it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _nothing() -> None: ...


def _median_us(action: Callable[[], Any], times: int, finish: Callable[[], Any] = _nothing) -> float:
    """The median over rounds of the time of one action; the first round warms up."""
    found: list[float] = []
    for _ in range(_ROUNDS + 1):
        finish()
        began = time.perf_counter()
        for _ in range(times):
            action()
        found.append((time.perf_counter() - began) / times * 1e6)
    finish()
    return statistics.median(found[1:])
