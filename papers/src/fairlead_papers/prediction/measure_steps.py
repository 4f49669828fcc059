"""Measure each training of `trainings` alone on a GPU: speed, utilization, memory, kernels and host time of a step.

python -m fairlead_papers.prediction.measure_steps --out steps.jsonl --budget 420

Each training runs in a process of its own, forked from one that has imported the libraries but has not touched CUDA: its
memory is that of a program of its own, without the seconds of the imports. The GPU must be idle otherwise. A line is written
after each training; the same command again continues."""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fairlead.profiling.meter import Meter
from fairlead.profiling.results import ResultsFile

MAX_S, MAX_CPU_S = 40.0, 600.0  # for one training, after which its process is ended
_LIBRARIES = ("timm", "transformers", "diffusers", "peft")
_MB = 2**20


@dataclass(frozen=True)
class StepTiming:
    """How long to measure one training, in seconds."""

    warm_steps: int = 3
    warm_s: float = 0.4
    window_s: float = 0.4
    windows: int = 3
    profiled: bool = True


class DeviceStep:
    """A training on its device, run step by step."""

    def __init__(self, name: str, device: str) -> None:
        import torch
        from torch.utils._pytree import tree_map_only

        from fairlead.prediction.training_step import TrainingStep
        from fairlead_papers.prediction.trainings import entry

        self.device, self.torch = torch.device(device), torch
        torch.manual_seed(0)
        with self.device:
            made = entry(name).make()
        made.model.to(self.device)
        for part in ("inputs", "targets"):
            object.__setattr__(made, part, tree_map_only(torch.Tensor, lambda one: one.to(self.device), getattr(made, part)))
        self.training, self.running = made, TrainingStep(made, device)

    @property
    def on_gpu(self) -> bool:
        """Whether the device works asynchronously and counts its memory."""
        return str(self.device.type) == "cuda"

    def step(self) -> None:
        """One optimizer step."""
        self.running.step()

    def finish(self) -> None:
        """Wait until the device has finished all submitted work."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def record_event(self) -> Callable[[], None]:
        """A function that waits for the work submitted until now."""
        if not self.on_gpu:
            return lambda: None
        event = self.torch.cuda.Event()
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    def sizes(self) -> dict[str, float]:
        """Megabytes of parameters, buffers, gradients, optimizer state and batch, after a step; and the number of tensors."""
        torch, model = self.torch, self.running.model
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        states = [one for state in self.running.optimizer.state.values() for one in state.values()]
        batch = torch.utils._pytree.tree_leaves((self.training.inputs, self.training.targets))
        on_device = [one for one in states if isinstance(one, torch.Tensor) and one.device.type == self.device.type]
        return {
            "parameters": sum(one.numel() for one in model.parameters()),
            "parameter_tensors": len(list(model.parameters())),
            "parameters_mb": _megabytes(model.parameters()),
            "buffers_mb": _megabytes(model.buffers()),
            "gradients_mb": _megabytes(gradients),
            "optimizer_mb": _megabytes(on_device),
            "inputs_mb": _megabytes(one for one in batch if isinstance(one, torch.Tensor)),
        }


def _megabytes(tensors: Any) -> float:
    held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return float(sum(held.values())) / _MB


def measure_step(name: str, device: str, timing: StepTiming) -> dict[str, Any]:
    """One row: a training in this process, which has not used CUDA before."""
    began = time.perf_counter()
    running = DeviceStep(name, device)
    running.finish()
    built = time.perf_counter()
    started, steps = time.perf_counter(), 0
    while steps < timing.warm_steps or time.perf_counter() - started < timing.warm_s:
        running.step()
        running.finish()
        steps += 1
    row: dict[str, Any] = {"build_s": built - began, **_peaks(running, "")}
    if running.on_gpu:
        running.torch.cuda.reset_peak_memory_stats()
    warm = time.perf_counter()
    rates, cpu, total = list[float](), _cpu_s(), 0
    with Meter(device) as meter:
        for _ in range(timing.windows):
            done, seconds = _window(running, timing.window_s)
            rates.append(done / seconds)
            total += done
    mean = statistics.fmean(rates)
    row |= {
        "steps_per_s": mean,
        "spread": (max(rates) - min(rates)) / mean,
        "windows": rates,
        "cpu_s_per_step": (_cpu_s() - cpu) / total,
        "host_cores": (_cpu_s() - cpu) / (time.perf_counter() - warm),
        **meter.summary(),
        **_peaks(running, "steady_"),
        "issue_s": _issue_s(running, timing.windows),
        **running.sizes(),
    }
    if running.on_gpu:
        free, whole = running.torch.cuda.mem_get_info()
        row["device_used_mb"] = (whole - free) / _MB
        if timing.profiled:
            row |= _kernels(running)
    return {**row, "took_s": time.perf_counter() - began}


def _window(running: DeviceStep, seconds: float) -> tuple[int, float]:
    """Steps and seconds; the host may run two steps ahead of the device, as in a real training."""
    waiting: list[Callable[[], None]] = []
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        running.step()
        waiting.append(running.record_event())
        steps += 1
        if len(waiting) > 2:
            waiting.pop(0)()
    running.finish()
    return steps, time.perf_counter() - began


def _issue_s(running: DeviceStep, times: int) -> float:
    """Seconds in which the host submits a step to an idle device: the least of some. It includes waiting where a step has more
    kernels than the device's queue holds."""
    found: list[float] = []
    for _ in range(times):
        running.finish()
        began = time.perf_counter()
        running.step()
        found.append(time.perf_counter() - began)
    running.finish()
    return min(found)


def _peaks(running: DeviceStep, prefix: str) -> dict[str, float]:
    if not running.on_gpu:
        return {}
    cuda = running.torch.cuda
    return {
        f"{prefix}allocated_mb": cuda.max_memory_allocated() / _MB,
        f"{prefix}reserved_mb": cuda.max_memory_reserved() / _MB,
    }


def _kernels(running: DeviceStep) -> dict[str, Any]:
    """The kernels of one step: number, device time, and the ten with the most time."""
    profiler = running.torch.profiler
    try:
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
            running.step()
            running.finish()
        events = [one for one in seen.profiler.kineto_results.events() if "cuda" in str(one.device_type()).lower()]
        spent, count = defaultdict[str, float](float), Counter[str]()
        kinds = Counter[str]()
        for one in events:
            name, seconds = one.name(), one.duration_ns() / 1e9
            kind = "copy" if name.startswith("Memcpy") else "set" if name.startswith("Memset") else "kernel"
            kinds[kind] += 1
            spent[name] += seconds
            count[name] += 1
        first = min((one.start_ns() for one in events), default=0)
        last = max((one.start_ns() + one.duration_ns() for one in events), default=0)
        longest = sorted(spent, key=lambda name: -spent[name])[:10]
    except Exception as problem:  # CUPTI may be refused; the other figures are worth keeping
        return {"profiler_problem": f"{type(problem).__name__}: {problem}"[:200]}
    return {
        "kernels": kinds["kernel"],
        "copies": kinds["copy"],
        "sets": kinds["set"],
        "device_s": sum(spent.values()),
        "device_span_s": (last - first) / 1e9,
        "top_kernels": [[name[:90], count[name], spent[name]] for name in longest],
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# Processes


def run_apart(task: Callable[..., Any], *given: Any, seconds: float = MAX_S) -> Any:
    """The result of a task in a forked process of its own; a text if it fails or takes longer."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, task, given), daemon=True)
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(seconds) else f"took more than {seconds:.0f} s"
    except EOFError:
        process.join(5)
        found = f"the process ended with {process.exitcode}"
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join(5)
    ours.close()
    return found


def _answer(connection: Connection, task: Callable[..., Any], given: Sequence[Any]) -> None:
    """The main function of a process. It ends without cleaning up: the system frees a GPU's memory faster."""
    try:
        found = task(*given)
    except Exception as problem:  # out of memory, or not made for this version of a library
        found = " ".join(f"{type(problem).__name__}: {problem}".split())[:400]
    connection.send(found)
    connection.close()
    os._exit(0)


def prepare_imports() -> None:
    """Children are forked from a process that has imported what trainings need. A missing library is reported by them."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts devices
    multiprocessing.set_forkserver_preload(["fairlead_papers.prediction.imports_of_trainings"])


def about_host(device: str) -> dict[str, Any]:
    """The header of a file: device, host and versions; in a process of its own, which may use CUDA."""
    import torch

    from fairlead.profiling.host_probe import probe_host

    found: dict[str, Any] = {**Meter(device).device(), "machine": platform.machine(), "python": platform.python_version()}
    found |= {"torch": str(torch.__version__), "cuda": str(torch.version.cuda), "cudnn": torch.backends.cudnn.version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = getattr(_imported(name), "__version__", None)
    found["allocator"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") or os.environ.get("PYTORCH_ALLOC_CONF", "")
    found["precision"] = "by the name of a training; TF32 as PyTorch's defaults"
    if device.startswith("cuda"):
        torch.ones(1, device=device)
        free, whole = torch.cuda.mem_get_info()
        found |= {"memory_mb": whole / _MB, "context_mb": (whole - free - torch.cuda.memory_reserved()) / _MB}
    return {**found, **asdict(probe_host(device))}


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def measure_all(to: Path, only: str, budget_s: float, device: str, timing: StepTiming, listed: str = "first") -> ResultsFile:
    """Measure what the file does not have yet. A training that failed is not measured again."""
    began = time.monotonic()
    from fairlead_papers.prediction.trainings import entries  # imports torch, and does not use CUDA

    about = run_apart(about_host, device, seconds=120.0)
    if isinstance(about, str):
        raise SystemExit(f"the device cannot be used: {about}")
    results = ResultsFile(to, about, ("device",))
    chosen = [one for one in entries(listed) if any(fnmatch.fnmatchcase(one.name, each) for each in only.split(","))]
    print(f"{len(chosen)} trainings, {len(results.known)} known; {_short(about)}", flush=True)
    for number, one in enumerate(chosen, 1):
        if one.name in results.known:
            continue
        if (passed := time.monotonic() - began) > budget_s:
            print(f"the budget of {budget_s:.0f} s is used up before {one.name}", flush=True)
            break
        found = run_apart(measure_step, one.name, device, timing, seconds=MAX_S if device.startswith("cuda") else MAX_CPU_S)
        row = {"problem": found} if isinstance(found, str) else found
        row = {"name": one.name, "family": one.family, **one.fields, **row, "session": results.session}
        results.add(row)
        print(f"{number}/{len(chosen)} {passed:.0f} s {one.name}: {_short(row)}", flush=True)
    return results


def _short(row: Mapping[str, Any]) -> str:
    shown = (
        *("problem", "profiler_problem", "device", "host_launch_us", "host_dispatch_us", "steps_per_s", "spread"),
        *("utilization", "sm_active", "allocated_mb", "reserved_mb", "kernels", "device_s", "build_s", "took_s"),
    )
    found = {name: row[name] for name in shown if name in row}
    return ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure the trainings of the list alone on a GPU.")
    parser.add_argument("--out", type=Path, required=True, help="file of results; what it has is not measured again")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds after which no measurement starts")
    parser.add_argument("--only", default="*", help="patterns of names, separated by commas, as in 'llama*,*fp32'")
    parser.add_argument("--list", default="first", help="which trainings: first, unseen or later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--window", type=float, default=StepTiming.window_s, help="seconds of each of the three windows")
    given = parser.parse_args(arguments)
    prepare_imports()
    timing = StepTiming(window_s=given.window, warm_s=given.window)
    known = measure_all(given.out, given.only, given.budget, given.device, timing, given.list).known
    failed = [name for name, row in known.items() if "problem" in row]
    print(f"{len(known)} measured, {len(failed)} failed: {', '.join(failed)}", flush=True)


if __name__ == "__main__":
    from fairlead_papers.prediction.measure_steps import main as run  # so that functions have this module's name, not __main__

    run()
