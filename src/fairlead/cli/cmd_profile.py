"""`fairlead profile`: measure training configurations on the accelerator at hand."""

from __future__ import annotations

import fnmatch
import math
import os
import platform
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from fairlead.cli.job_tables import legible
from fairlead.cli.output import JsonOption, check_paths, note, option_error, out, print_json, progress
from fairlead.core.cluster import is_type_name
from fairlead.core.errors import FairleadError, InputError, install, near_or_all, require
from fairlead.core.type_names import accelerator_type_of
from fairlead.prediction.features import graph_features
from fairlead.prediction.graph import load_graph
from fairlead.prediction.measured_profiles import Profiles, devices, profiles_of, shipped_profiles
from fairlead.profiling.configurations import Configuration, configuration, configurations
from fairlead.profiling.pair_selection import SelectionMetric, measurement_plan, noisiest, select_configurations
from fairlead.profiling.profile_pairs import PairTiming
from fairlead.profiling.results import ResultsFile, measured_set, read_pairs, read_results
from fairlead.profiling.sharing_mode import SharingMode, in_sharing_mode
from fairlead.workloads.table_files import write_throughputs
from fairlead.workloads.throughput_tables import MeasuredTraining, colocation_table

# `fairlead profile table`: what was measured as a throughput table, which simulations read.


def table(
    to: Path = typer.Option(..., "--out", help="The file to write: .csv or .parquet."),
    alone: Path | None = typer.Option(None, help="A result file of `profile alone`. [default: the measured set of --set]"),
    pairs: list[Path] | None = typer.Option(
        None, help="A result file of `profile pairs`; repeatable. [default: the measured set of --set]"
    ),
    set_: str = typer.Option("h200", "--set", help="A measured set that ships with Fairlead."),
    sharing: SharingMode = typer.Option(SharingMode.TIME_SLICING, help="The sharing mode of the pairs to use."),
    together: bool = typer.Option(
        False,
        "--together",
        help="Keep only configurations that were measured in pairs with all others, for schedulers that co-locate any two.",
    ),
    type_name: str = typer.Option("", "--type", help="Name of the GPU type. [default: from the device]"),
    json: JsonOption = False,
) -> None:
    """Write measurements as a throughput table for the simulator.

    Examples:

      fairlead profile table --out h200.csv
      fairlead simulate --policy las --throughputs h200.csv --trace jobs.csv

    A job type is a configuration, model@input:batch. Rates are for one worker, alone and co-located with each configuration
    that was measured with it. Schedulers that use the table co-locate only measured pairs. Schedulers that predict
    interference, such as Horus, co-locate any two jobs: use --together for them.
    """
    if type_name and not is_type_name(type_name):
        raise InputError("profile table", "the name of a GPU type, such as h200", field="type", value=type_name)
    check_paths([alone, *(pairs or [])], [to])
    known = _known(alone, pairs or [], set_)
    slowdowns = known.pairs.get(sharing.value, {})
    found = {pair: max(1.0, slower) for pair, (slower, _) in slowdowns.items()}  # faster co-located than alone is noise
    wanted = _all_met(found) if together else known.alone.keys()
    require(wanted, "profile table", f"pairs that were measured, {sharing.value}", "together")
    rows = [
        MeasuredTraining(one.name, one.steps_per_s, one.utilization, one.memory_mb / 1024)
        for one in known.alone.values()
        if one.name in wanted
    ]
    made = colocation_table(
        type_name.lower() or accelerator_type_of(known.device),
        rows,
        lambda one, other: found.get((one, other), math.inf),
        source="measured",
    )
    write_throughputs(made, to)
    met = {frozenset(pair) for pair in found if wanted >= {*pair}}
    told = {"out": str(to), "type": made.types[0], "kinds": len(rows), "pairs": len(met)}
    if json:
        print_json(told)
    else:
        note(f"{to}: {told['kinds']} job types on {told['type']}, {told['pairs']} pairs, {sharing.value}")


def _all_met(pairs: Collection[tuple[str, str]]) -> set[str]:
    """Many of whom every two were measured together: the configuration that missed most others is left out, until none did."""
    names = {one for one, _ in pairs}
    while names:
        missed = {one: sum((one, other) not in pairs for other in names) for one in names}
        worst = max(names, key=lambda one: (missed[one], one))
        if not missed[worst]:
            break
        names.remove(worst)
    return names


def _known(alone: Path | None, pairs: list[Path], shipped: str) -> Profiles:
    if alone is None and not pairs:
        if shipped not in devices():
            raise InputError(
                "profile table",
                f"a set that ships with Fairlead ({near_or_all(shipped, devices())})",
                field="set",
                value=shipped,
            )
        return shipped_profiles(shipped, None)
    if alone is None:
        raise InputError(
            "profile table", "--alone FILE with --pairs, measured on the same host", field="pairs", value=str(pairs[0])
        )
    return profiles_of(read_results(alone), {path: read_pairs(path) for path in pairs}, alone)


LONGEST_S = 3600.0  # that a pair is looked at

profile_app = typer.Typer(help="Measure training jobs on this machine's GPU. Needs the extra torch.", no_args_is_help=True)


@profile_app.command(name="list")
def list_(only: str = typer.Option("*", help="Names to show, as in 'resnet*@224:*'."), json: JsonOption = False) -> None:
    """List the configurations that can be measured, as model@input:batch."""
    found = _chosen(only)
    if json:
        print_json({"configurations": [one.name for one in found]})
        return
    for one in found:
        out.print(f"{one.family:<16} {one.name}")


@profile_app.command()
def alone(
    to: Path = typer.Option(..., "--out", help="The file of results. Configurations that it has are not measured again."),
    only: str = typer.Option("*", help="Names to measure, as in 'resnet*@224:*'."),
    budget_s: float = typer.Option(3600.0, "--budget", help="Seconds after which no new measurement starts.", min=1.0),
    device: str = typer.Option("cuda", help="cuda, cuda:1, cpu …"),
    json: JsonOption = False,
) -> None:
    """Measure each configuration alone: steps per second, utilization and memory.

    Example:

      fairlead profile alone --out h200.jsonl --budget 600

    Run the same command again to continue. A configuration that cannot run here is recorded with its error. Model families
    alternate, so a partial run covers all of them.
    """
    about = _about(device)
    measuring: Any = import_module("fairlead.profiling.profile_alone")
    results = _begun(to, about, ("device",), unlike=("pair", "alone", "flops"))
    left = [one for one in _chosen(only) if one.name not in results.known]
    began, done, lacking = time.monotonic(), 0, set[str]()
    with progress(len(left), "measuring", quiet=json) as bar:
        for one in left:
            if time.monotonic() - began > budget_s:
                break
            try:
                results.add(measuring.measure_alone(one, device))
                done += 1
            except ImportError as problem:
                lacking.add(problem.name or str(problem))
            bar.advance()
    if lacking:
        note(f"some configurations were skipped; these packages are not installed: {', '.join(sorted(lacking))}")
    _tell(results, done, len(left) - done, json)


@profile_app.command()
def pairs(
    to: Path = typer.Option(..., "--out", help="The file of results. Configurations that it has are not measured again."),
    of: str = typer.Option("", help="Names, separated by commas. [default: a selection that spans the measured set]"),
    span: SelectionMetric = typer.Option(
        SelectionMetric.UTILIZATION, help="What the selection spans: utilization, or occupied multiprocessors."
    ),
    sharing: SharingMode = typer.Option(SharingMode.TIME_SLICING, help="How the two jobs share the GPU."),
    budget_s: float = typer.Option(3600.0, "--budget", help="Seconds after which no new measurement starts.", min=1.0),
    window_s: float = typer.Option(0.3, "--window", help="Seconds in each repetition with both jobs running.", min=0.01),
    alone_s: float = typer.Option(0.2, "--alone", help="Seconds in each repetition with only one job running.", min=0.01),
    looks: int = typer.Option(2, help="Number of consecutive repetitions of each pair.", min=1, max=100),
    warm_s: float = typer.Option(0.1, "--warm", help="Seconds of warm-up before the first repetition.", min=0.0),
    solos: int = typer.Option(1, help="How often each configuration is measured alone.", min=1, max=100),
    again: int = typer.Option(0, help="Number of pairs to measure again, to estimate noise.", min=0),
    times: int = typer.Option(2, help="How often these pairs are measured in total.", min=2, max=100),
    noisy: int = typer.Option(0, "--noisiest", help="Number of pairs, those that varied most, to measure twice.", min=0),
    device: str = typer.Option("cuda", help="cuda, cuda:1, cpu …"),
    json: JsonOption = False,
) -> None:
    """Measure pairs of configurations on one GPU: steps per second of both together, and of each alone.

    Example:

      fairlead profile pairs --out pairs.jsonl --budget 600

    A repetition measures the first alone, both together, and the second alone within a second, so that drift of the host
    affects all three. Run the same command again to continue. Two processes hold all models. Pairs alternate between
    configurations, so a partial run covers all of them.
    """
    _seconds(window=window_s, alone=alone_s, warm=warm_s)
    timing = PairTiming(warm_s, alone_s, window_s, looks)
    durations = {"warm_s": warm_s, "alone_s": alone_s, "window_s": window_s}
    about = {**_about(device), "sharing": sharing.value, **durations, "looks": looks, "steps": timing.steps}
    named = dict.fromkeys(configuration(name.strip()).name for name in of.split(",")) if of else ()
    names = tuple(named) or select_configurations(measured_set()[1], metric=span)
    results = _begun(to, about, ("device", "sharing"), unlike=("flops",))
    vary = noisiest([row for row in results.known.values() if {*row.get("pair", ())} <= {*names}], noisy)
    asked = measurement_plan(names, solos, again, times, vary, results.known)
    if not asked:
        return _tell(results, 0, 0, json)
    began, done = time.monotonic(), 0
    measuring: Any = import_module("fairlead.profiling.profile_pairs")
    with in_sharing_mode(sharing), measuring.PairBench(names, device, timing) as bench:
        unfit = bench.problems
        if unfit.keys() >= {*names}:
            raise FairleadError(f"none of the configurations can be trained here: {names[0]}: {unfit[names[0]]}")
        if unfit:
            name, problem = next(iter(unfit.items()))
            note(f"{len(unfit)} configurations are left out because they cannot be trained here: {name}: {problem}")
        fit = [one for one in asked if unfit.keys().isdisjoint(one.of)]
        with progress(len(fit), "measuring", quiet=json) as bar:
            for one in fit:
                if time.monotonic() - began > budget_s:
                    break
                told = bench.alone(*one.of) if len(one.of) == 1 else bench.together(*one.of)
                results.add({**told, "name": one.name, "session": results.session})
                done += 1
                bar.advance()
    _tell(results, done, len(asked) - done, json)


profile_app.command()(table)


@profile_app.command("module", hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def former_module(spelled: str = typer.Argument("mine.py:training")) -> None:
    """Renamed: use `fairlead predict module`."""
    raise FairleadError(f"profile module is now predict module: run fairlead predict module {spelled}")


@profile_app.command()
def host(
    device: str = typer.Option("cuda", help="The GPU whose launches are timed; cpu times only the host."),
    json: JsonOption = False,
) -> None:
    """Measure how fast this host launches kernels, for about two seconds.

    Example:

      fairlead profile host

    Small models take as long as the host needs to launch their kernels, so predicted speeds depend on these figures. Without a
    GPU, only the overhead of Python and PyTorch is measured.
    """
    _needs_torch()
    found = import_module("fairlead.profiling.host_probe").probe_host(device)
    if json:
        print_json(asdict(found))
        return
    out.print(f"{found.host_cpu or 'unknown CPU'}")
    out.print(f"Python call {found.host_python_us:.2f} µs, operator on the CPU {found.host_dispatch_us:.1f} µs")
    out.print(f"layer of a small training on the CPU {found.host_step_us:.0f} µs")
    if found.host_launch_us is None:
        note("no GPU was used, so the time of a kernel launch is not known")
    else:
        out.print(f"kernel launch {found.host_launch_us:.1f} µs")


@profile_app.command()
def features(
    to: Path = typer.Option(..., "--out", help="The file of features. Configurations that it has are not computed again."),
    only: str = typer.Option("*", help="Names to export, as in 'resnet*@224:*'."),
    json: JsonOption = False,
) -> None:
    """Compute the features of each configuration from its graph, on the CPU.

    Example:

      fairlead profile features --out features.jsonl

    The model is exported to ONNX, and its graph is read. Predictors of utilization and memory learn from these features.
    """
    about = {**_about("cpu"), "onnx": _onnx()}
    exporting: Any = import_module("fairlead.profiling.onnx_export")
    results = _begun(to, about, (), unlike=("steps_per_s",))
    left = [one for one in _chosen(only) if one.name not in results.known]
    with progress(len(left), "exporting", quiet=json) as bar, TemporaryDirectory() as folder:
        for _, alike in groupby(sorted(left), key=lambda one: (one.family, one.model, one.input)):
            same = list(alike)
            path = Path(folder) / "model.onnx"
            try:
                exporting.export_configuration(same[0], path)
                graph = load_graph(path)
            except FairleadError as problem:
                rows = [{"name": one.name, "family": one.family, "problem": str(problem)} for one in same]
            else:
                rows = [
                    {"name": one.name, "family": one.family, **asdict(graph_features(graph, one.batch_size))} for one in same
                ]
            path.unlink(missing_ok=True)
            for row in rows:
                results.add(row)
                bar.advance()
    _tell(results, len(left), 0, json)


def _begun(to: Path, about: dict[str, Any], same: Sequence[str], unlike: Sequence[str]) -> ResultsFile:
    """Open a results file to append to. A file without measurements is emptied, and its header is written again. A file with
    measurements of another kind, which have the fields of `unlike`, is refused."""
    rows = list[dict[str, Any]]()
    with suppress(InputError, OSError):  # what is wrong with it is told when it is opened
        rows = read_results(to)[1]
        if not rows:
            to.write_bytes(b"")
    if strange := next((row for row in rows if not {*unlike}.isdisjoint(row)), None):
        expected = "only measurements of the same command in this file; pass another --out"
        raise InputError(to, expected, field="out", value=strange["name"])
    return ResultsFile(to, about, same)


def _tell(results: ResultsFile, done: int, left: int, json: bool) -> None:
    failed = [one for one in results.known.values() if "problem" in one]
    if json:
        print_json({"measured": done, "left": left, "kept": len(results.known), "with_a_problem": len(failed)})
        return
    note(f"{results.path}: {done} measured, {left} left; the file has {len(results.known)}, {len(failed)} of them failed")
    if failed:
        note(legible(f"{failed[0]['name']}: {failed[0]['problem']}") + (" …" if len(failed) > 1 else ""))


def _about(device: str) -> dict[str, Any]:
    """What is measured on."""
    torch = _torch(device)
    meter = import_module("fairlead.profiling.meter").Meter(device)
    return {
        **meter.device(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "precision": "single; TF32 as PyTorch's defaults",
    }


def _chosen(only: str) -> list[Configuration]:
    found = [one for one in configurations() if fnmatch.fnmatchcase(one.name, only)]
    if not found:
        raise option_error("only", "a pattern that matches a configuration; `fairlead profile list` shows them", only)
    return found


def _onnx() -> str:
    try:
        return version("onnx")
    except PackageNotFoundError:
        raise FairleadError(f"reading a model's graph needs onnx: {install('predict')}") from None


def _needs_torch() -> Any:
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # else CUDA has the fastest first, and NVML would be asked of another
    try:
        return import_module("torch")
    except ImportError:
        raise FairleadError(f"profiling trains models and needs torch: {install('torch')}") from None


def _torch(device: str) -> Any:
    torch = _needs_torch()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise option_error("device", "an available device; this machine has no CUDA, so pass --device cpu", device)
    try:
        where = torch.device(device)
        there = where.index is None or where.index < torch.cuda.device_count()
        if where.type != "cuda":  # a tensor on CUDA takes of what is to be measured
            there = torch.ones(1, device=where).sum().item() == 1
    except (RuntimeError, AssertionError, ImportError, AttributeError):  # PyTorch knows many it was not built for
        there = False
    if not there:
        raise option_error("device", "an available device that can train, as in cuda, cuda:0, cpu", device)
    return torch


def _seconds(**given: float) -> None:
    for name, value in given.items():
        require(value <= LONGEST_S, f"--{name}", f"at most {LONGEST_S:,.0f} seconds", name, value)
