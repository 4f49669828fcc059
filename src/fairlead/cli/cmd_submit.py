"""`fairlead submit`: jobs from task files, job scripts and command lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import typer

from fairlead.cli.cmd_wait import follow_jobs, wait_for_jobs
from fairlead.cli.output import JsonOption, note, option_error, option_pairs, out, print_json
from fairlead.cli.script_lines import read_script, saves_nothing
from fairlead.cli.selectors import control_plane
from fairlead.config.yaml_source import read_yaml
from fairlead.core.errors import InputError
from fairlead.experiments.metric_columns import format_delay, format_duration
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.runtime.protocol.code_archive import archive_digest, pack_code
from fairlead.runtime.protocol.task_file import ALIASES, TaskSpec, parse_task
from fairlead.runtime.protocol.task_parts import ContainerSpec, LeaseSpec

_PANELS = ("Job", "Resources", "Scheduling", "Many jobs")
_job, _resource, _schedule, _many = (partial(typer.Option, rich_help_panel=panel) for panel in _PANELS)


def submit_command(
    context: typer.Context,
    words: list[str] | None = typer.Argument(
        None,
        metavar="TASK",
        help="Task files (x.yaml), a job script (x.sh) with its arguments, a program after --, or a shell command in quotes.",
    ),
    name: str = _job("", help="Name of the job.  [default: job-NUMBER]"),
    env: list[str] | None = _job(None, metavar="NAME=VALUE", help="Set a variable; NAME alone copies its value; repeatable."),
    dir: str = _job("", help="Directory on the nodes to run in.  [default: this one]"),
    code: str = _job("", help="A directory or zip file to send along; the job runs in it."),
    output: str = _job(
        "",
        metavar="FILE",
        help="A file on the node that also gets the output. In its name, %j is the job's number, %x its name or its array's, "
        "%A the array's first number, %a the index, %t the rank, %u the user, %N the host.",
    ),
    outputs: list[str] | None = _job(None, help="Files to keep for 'fairlead fetch': a path or pattern; repeatable."),
    kind: str = _job("", help="Job type, as in 'resnet (batch size 32)'.  [default: the name of the script or program]"),
    prefix: str = _job("", help="Words before the command, such as 'nice -n 10'."),
    image: str = _job(
        "", help="Run the command in a container of this image. For mounts and more, use 'container' in a task file."
    ),
    workers: int = _resource(1, "--workers", "--gpus", help="Number of workers (gang size). Each worker has one GPU.", min=1),
    types: str = _resource("", help="GPU types that the job may use, separated by commas."),
    memory_gb: float = _resource(0.0, help="GPU memory for each worker.  [default: as predicted]", min=0),
    predict: str = _resource(
        "",
        metavar="FILE:NAME",
        help="Predict this training here, as 'fairlead predict module' does, and submit the prediction.",
    ),
    prediction: str = _resource("", metavar="FILE", help="A prediction that 'fairlead predict module --json' printed."),
    cpus: float = _resource(0.0, help="CPU cores for each worker.", min=0),
    host_memory_gb: float = _resource(0.0, help="Host memory for each worker.", min=0),
    time: str = _schedule("", help="Run-time limit over all launches, as in 90m, 2h or 1-02:00:00; waiting does not count."),
    retries: int = _schedule(3, help="How many times a failed job is retried.", min=0),
    priority: int = _schedule(0, help="From -1000 to 1000; higher goes first."),
    weight: float = _schedule(1.0, help="Share of the job in fair policies."),
    account: str = _schedule("", help="Account (team) of the job."),
    after: list[str] | None = _schedule(None, help="A job or an array that must finish first; repeatable."),
    deadline: str = _schedule("", help="Time from now by which the job should finish."),
    min_run: str = _schedule("", help="Time that the job runs before it may be preempted."),
    steps: float | None = _schedule(None, help="Total number of steps, if known."),
    mode: str = _schedule("", help="elastic: the number of workers may change. Also: static, accordion, gns, expert."),
    schedule: str = _schedule("", help="For mode expert, with --steps: batch sizes and shares, as in '32@0.3|256@0.7'."),
    max_slowdown: float | None = _schedule(None, help="Tolerated slowdown on a shared GPU; with 1 the job shares none.", min=1),
    cooperative: bool = _schedule(True, help="Whether the job reads its lease; otherwise it gets SIGTERM."),
    grace: str = _schedule("", help="Time to save before the job is killed.  [default: 30s]"),
    lease: list[str] | None = _schedule(None, metavar="KEY=VALUE", help="max_steps, max_duration_s or renewal; repeatable."),
    array: str = _many("", help="Many jobs: 20 (0 to 19), 0-19, 0-19:2 or 1,3,5. Each has its FAIRLEAD_ARRAY_INDEX."),
    grid: list[str] | None = _many(
        None,
        metavar="NAME=V1,V2",
        help="One job per combination of values. A value replaces {NAME} in the command and is a variable; repeatable.",
    ),
    group: str = _many("", help="Group of trials, of which the worst may be stopped."),
    group_order: int = _many(0, help="Position in the group.", min=0),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only check the job, and print what would be submitted."),
    wait: bool = typer.Option(False, "--wait", help="Wait until the jobs have ended; the exit code is their result."),
    follow: bool = typer.Option(
        False, "--follow", "-f", help="Print the log until the jobs have ended; the exit code is their result."
    ),
    json: JsonOption = False,
) -> None:
    """Submit jobs.

      fairlead submit -- python train.py --lr 0.1

      fairlead submit 'python prepare.py && python train.py'

      fairlead submit --gpus 2 --time 2h train.sh

      fairlead submit task.yaml --array 0-19

      fairlead submit --predict train.py:training -- python train.py

    Words after -- are a program with its arguments. A command in quotes runs in a shell. A job script (x.sh) is sent along, so
    nodes need no copy; its lines '#FAIRLEAD --gpus 2' and the common '#SBATCH' lines are options. Options of the command line
    override those of a file.

    Without --code, the job runs in this directory, which the nodes must have too. With --code DIR (or code: DIR in the file),
    the directory is sent and unpacked on the node, without private keys (PEM files) and tokens (*.token).

    With --predict (or predict: FILE:NAME in the file), the job has a prediction of its GPU memory, utilization and speed. So
    it may share a GPU before it was measured. The training is traced on this machine, without a GPU (extra: torch).

    Several task files, an array or a grid are one submission: all jobs are accepted or none. If a job fails, the jobs
    that wait for it (--after) are cancelled.

    Exit codes: 0 accepted (with --wait or --follow: finished), 1 the job failed or was cancelled, 2 wrong usage or input,
    4 refused, 5 unreachable.
    """
    if not words:
        raise InputError("submit", "a task file, a job script, a program after --, or a command in quotes")
    given = _given(context)
    if script := read_script(words[0]):
        given = _merged(_in_script(context, script.path, script.options), given)
        for warning in script.warnings:
            note(f"{script.path}: {warning}")
        task = {"run": script.command(words[1:]), "kind": script.path.name}
        written = [(str(script.path), task, Path.cwd())]
    elif all(word.endswith((".yaml", ".yml")) for word in words):
        written = [(word, _task_in(word), Path(word).parent) for word in words]
    else:
        run: list[str] | str = words[0] if len(words) == 1 and len(words[0].split()) > 1 else list(words)
        written = [("command line", {"run": run}, Path.cwd())]
    jobs, specs = list[dict[str, Any]](), list[TaskSpec]()
    archives, folders = list[bytes](), list[Path]()
    for source, task, folder in written:
        task = _with_prediction(_by_field(task), _fields(given), folder, source)
        if (place := _code(given.get("code", ""), task, folder)) is not None:
            archives.append(pack_code(place, lambda path: note(f"{path} is not sent: it is a private key, or a token")))
            task["code"] = archive_digest(archives[-1])
        else:
            task.setdefault("directory", str(Path.cwd()))
        folders.append(place or Path(str(task["directory"])))
        specs.append(parse_task(task, source))
        jobs.append(task)
    plane = control_plane()
    if asked := [name for spec in specs for name in spec.types]:
        from fairlead.workloads.catalogue import misspelt_types  # slow to import

        if misspelt_types(asked):  # the cluster may have types that the catalogue lacks
            for remark in misspelt_types(asked, plane.rates()["types"]):
                note(f"types: {remark}")
    for archive in archives:
        plane.send_code(archive)
    answer = plane.submit(jobs, dry_run=dry_run)
    if json:
        print_json({"jobs": answer})
    elif dry_run:
        _print_checked(specs, answer)
        _print_starts(specs, answer)
    else:
        _print_submitted(answer)
        if any(map(saves_nothing, jobs, folders)) and (policy := plane.preempting_policy()):
            again = "a script without checkpoints starts again each time (--min-run protects it)"
            note(f"note: the policy '{policy}' preempts jobs; {again}")
    if dry_run:
        return
    if follow:
        follow_jobs(plane, answer)
    elif wait:
        wait_for_jobs(plane, [job["number"] for job in answer], quiet=json)


def _print_checked(tasks: Sequence[TaskSpec], jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print what would be submitted, in one line for each task."""
    left = iter(jobs)
    for task in tasks:
        here = list(islice(left, len(task.members(""))))
        name = f"{task.name or 'array'}: {len(here):,} jobs" if "array" in here[0] else f"{task.name or 'the job'}: 1 job"
        limit = f"time limit {format_duration(task.time_limit_s)}" if task.time_limit_s else "no time limit"
        names = ", ".join(sorted({*task.env, *map(str.upper, task.grid)})) or "no variables"
        types = ", ".join(here[0]["types"]) or "nodes that join: the cluster has none yet"
        out.print(f"{name}, workers: {task.workers}, {limit}, environment: {names}; can run on {types}", soft_wrap=True)


def _print_starts(tasks: Sequence[TaskSpec], jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print when each job would start, where the control plane forecasts it, and whether much sooner with fewer GPUs."""
    for task, job in zip(tasks, jobs):
        if "starts_s" in job:
            text = "at a time that is not known" if job["starts_s"] is None else format_delay(job["starts_s"])
            for sooner in job["alternatives"][:1]:
                text += f"; with --gpus {sooner['workers']} instead of {task.workers}, {format_delay(sooner['starts_s'])}"
            out.print(f"{job['name'] or 'the job'} should start {text}", soft_wrap=True)


def _print_submitted(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each job; an array is one line."""
    arrays: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        if array := job.get("array"):
            arrays.setdefault(array["id"], []).append(job)
        else:
            out.print(f"{job['name']} (number {job['number']})")
    for members in arrays.values():
        first, last = members[0], members[-1]
        named = f"{first['name']} to {last['name']}, numbers {first['number']} to {last['number']}"
        out.print(f"{first['array']['name']} ({len(members):,} jobs: {named})")


def _given(context: Any) -> dict[str, Any]:
    """The options that stand on the command line."""
    named = (name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE")
    return {name: context.params[name] for name in named if name not in ("words", "dry_run", "wait", "follow", "json")}


def _in_script(context: typer.Context, path: Path, options: Sequence[str]) -> dict[str, Any]:
    """The options that stand in a script."""
    try:
        inner = context.command.make_context("submit", list(options), parent=context.parent)
    except Exception as error:
        if (text := getattr(error, "format_message", None)) is None:
            raise
        raise InputError(path, f"options of 'fairlead submit' ({text().rstrip('.')})") from None
    if inner.params.get("words"):
        raise InputError(path, "options of 'fairlead submit'", value=" ".join(inner.params["words"]))
    return _given(inner)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The options or fields of a file, overridden by those of the command line; variables are joined."""
    merged = {**below, **above}
    for one, other in (("array", "grid"), ("grid", "array")):
        if one in above and other not in above:
            merged.pop(other, None)
    if "env" in below and "env" in above and isinstance(below["env"], type(above["env"])):
        joined = below["env"]
        merged["env"] = {**joined, **above["env"]} if isinstance(joined, dict) else [*joined, *above["env"]]
    if "container" in below and "container" in above:
        merged["container"] = {**_container(below["container"]), **above["container"]}
    container, variables = merged.get("container"), above.get("env")
    if isinstance(container, dict) and isinstance(container.get("env"), dict) and isinstance(variables, dict):
        overridden = {name: value for name, value in variables.items() if name in container["env"]}
        merged["container"] = {**container, "env": {**container["env"], **overridden}}
    return merged


_RENAMED = {"dir": "directory", "time": "time_limit_s"} | {name: f"{name}_s" for name in ("deadline", "min_run", "grace")}


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task that options mean."""
    fields = {_RENAMED.get(name, name): value for name, value in given.items() if name != "code"}
    if "types" in fields:
        fields["types"] = [name.strip() for name in fields["types"].split(",") if name.strip()]
    if "directory" in fields:
        fields["directory"] = str(Path(fields["directory"]).absolute())
    if "prefix" in fields:
        fields["prefix"] = shlex.split(fields["prefix"])
    if "image" in fields:
        fields["container"] = {"image": fields.pop("image")}
    if "env" in fields:
        fields["env"] = dict(_variable(word) for word in fields["env"])
    if "grid" in fields:
        grid = option_pairs("grid", fields["grid"], "a name and a value such as lr=0.1,0.01")
        fields["grid"] = {name: values.split(",") for name, values in grid}
    if "lease" in fields:
        fields["lease"] = dict(option_pairs("lease", fields["lease"], "a name and a value such as max_steps=100"))
    return fields


def _container(written: Any) -> dict[str, Any]:
    """The keys of a container; other values than an image and a mapping are refused without an image."""
    return {"image": written} if isinstance(written, str) else dict(written) if isinstance(written, Mapping) else {}


def _variable(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals and name not in os.environ:
        raise option_error("env", "NAME=VALUE, or the name of a variable that is set here", word)
    return name, value if equals else os.environ[name]


def _by_field(task: Mapping[str, Any]) -> dict[str, Any]:
    """The same task with the present names of its fields."""
    both = {old for old, new in ALIASES.items() if old in task and new in task}  # refused later
    return {name if name in both else ALIASES.get(name, name): value for name, value in task.items()}


def _task_in(file: str) -> dict[str, Any]:
    written = read_yaml(file)
    fields = written.mapping([*TaskSpec.model_fields, *ALIASES, "predict"])
    for name, spec in (("container", ContainerSpec), ("lease", LeaseSpec)):
        if name in fields and isinstance(fields[name].data, dict):
            fields[name].mapping(spec.model_fields)
    return dict(written.data)


_PREDICTIONS = ("predict", "prediction")
_PREDICT_TEXTS = ("precision", "optimizer", "device", "sharding")
_PREDICT_OPTIONS: Mapping[str, Any] = {"batch": int, **dict.fromkeys(_PREDICT_TEXTS, str), "host_launch_us": (float, int)}
_NOT_PREDICTED = ("batch_size", "fits")  # in the output of `predict module`


def _with_prediction(task: Mapping[str, Any], given: Mapping[str, Any], folder: Path, source: str) -> dict[str, Any]:
    """Merge the fields of a file and of the command line. A training to predict, or a file, is replaced by the prediction."""
    if any(name in given for name in _PREDICTIONS):
        task, folder, source = {k: v for k, v in task.items() if k not in _PREDICTIONS}, Path.cwd(), "command line"
    merged = _merged(task, given)
    predict, found = merged.pop("predict", None), merged.get("prediction")
    if predict is not None and found is not None:
        raise InputError(source, "either a training to predict, or a prediction", field="predict")
    if predict is not None:
        options = dict(predict) if isinstance(predict, Mapping) else {"module": predict}
        if not isinstance(module := options.pop("module", None), str) or ":" not in module:
            raise InputError(source, "a file and a function in it, as in train.py:training", field="predict", value=module)
        for name, value in options.items():
            kind = _PREDICT_OPTIONS.get(name)
            if kind is None or isinstance(value, bool) or not isinstance(value, kind):
                others = f"one of {', '.join(_PREDICT_OPTIONS)}" if kind is None else "a number"
                expected = "a text" if kind is str else "a whole number" if kind is int else others
                raise InputError(source, expected, field=f"predict.{name}", value=value)
        if isinstance(workers := merged.get("workers"), int) and workers >= 1:  # other values are refused later
            options["workers"] = workers
        from fairlead.cli.cmd_predict_module import predict_file

        merged["prediction"] = predict_file(str(folder / module), **options).to_data()
    elif isinstance(found, str):
        try:
            data = orjson.loads((folder / found).read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(folder / found, f"a file that 'fairlead predict module --json' wrote ({error})") from None
        merged["prediction"] = {k: v for k, v in data.items() if k not in _NOT_PREDICTED} if isinstance(data, dict) else data
    if isinstance(found := merged.get("prediction"), dict):
        about = StepPrediction.from_data(found, source)
        busy = f"{about.utilization:.0f} % utilization ({about.utilization_low:.0f} to {about.utilization_high:.0f})"
        each = f", each of {about.workers} workers ({about.sharding})" if about.workers > 1 else ""
        note(f"predicted on {about.device}{each}: at most {about.memory_gb:.1f} GB, {busy}, {about.steps_per_s:.3g} steps/s")
    return merged


def _code(place: str, task: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the directory or zip file of --code, or of the task file's `code`, relative to that file; None without either."""
    named = task.get("code")
    if not place and isinstance(named, str) and named:
        place = str(folder / named)
    return Path(place) if place else None
