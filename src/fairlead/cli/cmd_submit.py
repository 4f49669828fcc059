"""`fairlead submit`: jobs from task files and command lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fairlead.cli.output import JsonOption, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.config.yaml_source import read_yaml
from fairlead.core.errors import InputError
from fairlead.core.job import FORMER_FIELDS
from fairlead.runtime.protocol.code_archive import archive_digest, pack_code
from fairlead.runtime.protocol.task_file import TaskSpec, parse_task


def submit_command(
    words: list[str] | None = typer.Argument(None, help="Task files (x.yaml), or a program and its arguments after --."),
    name: str = typer.Option("", help="[default: job-NUMBER]"),
    workers: int = typer.Option(1, help="Number of workers (gang size).", min=1),
    mode: str = typer.Option(
        "", help="elastic: the scheduler may change the number of workers. Also: static, accordion, gns, expert."
    ),
    kind: str = typer.Option("", help="Job type, as in 'resnet (batch size 32)'. [default: the name of the script or program]"),
    schedule: str = typer.Option("", help="For mode expert, with --steps: batch sizes and shares, as in '32@0.3|256@0.7'."),
    types: str = typer.Option("", help="GPU types that the job may use, separated by commas."),
    steps: float | None = typer.Option(None, help="Total number of steps, if known."),
    array: str = typer.Option("", help="Many jobs: 20 (0 to 19), 0-19, 0-19:2 or 1,3,5. Each has its FAIRLEAD_ARRAY_INDEX."),
    after: list[str] | None = typer.Option(None, help="A job that must finish first; repeatable."),
    code: Path | None = typer.Option(None, help="A directory or zip file to send along; the job runs in it."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only check on which GPU types the job can run."),
    json: JsonOption = False,
) -> None:
    """Submit a job: fairlead submit -- python train.py. Or a task in a file: fairlead submit task.yaml.

    When the command returns, the job is in the journal. Without --code, the job runs in this directory, which the nodes must
    have too. With --code DIR (or code: DIR in the file), the directory is sent and unpacked on the node. Each launch gets its
    own copy; an archive that was sent before is not sent again.

    --after JOB (or after: [a, b] in the file) makes the job wait until that job has finished; if that job fails or is
    cancelled, this one is cancelled too. Several files are one submission: all are accepted or none. They may name each other:
    fairlead submit prepare.yaml train.yaml. Exit codes: 0 accepted, 2 refused.
    """
    if not words:
        raise InputError("submit", "a task file, or a program after --")
    given = {
        "name": name,
        "workers": workers if workers > 1 else None,
        "mode": mode,
        "kind": kind,
        "schedule": schedule,
        "types": types.split(",") if types else None,
        "steps": steps,
        "after": after,
        "array": array,
    }
    given = {key: value for key, value in given.items() if value}
    jobs: list[dict[str, Any]] = []
    archives: list[bytes] = []
    if all(word.endswith((".yaml", ".yml")) for word in words):
        written = [(word, _task_in(word)) for word in words]
    else:
        written = [("command line", {"run": list(words)})]
    for source, task in written:
        task |= given
        if archive := _code(code, task, Path(source).parent):
            task["code"] = archive_digest(archive)
            archives.append(archive)
        else:
            task.setdefault("directory", str(Path.cwd()))
        parse_task(task, source)
        jobs.append(task)
    plane = control_plane()
    for archive in archives:
        plane.send_code(archive)
    answer = plane.submit(jobs, dry_run=dry_run)
    if json:
        print_json({"jobs": answer})
        return
    for job in answer:
        if dry_run:
            out.print(f"{job['name'] or 'the job'} can run on {', '.join(job['types'])}")
        else:
            out.print(f"{job['name']} (number {job['number']})")


def _task_in(file: str) -> dict[str, Any]:
    written = read_yaml(file)
    written.mapping([*TaskSpec.model_fields, *FORMER_FIELDS])
    return dict(written.data)


def _code(place: Path | None, task: Mapping[str, Any], folder: Path) -> bytes:
    """Return the archive of --code, or of the task file's `code`, relative to that file; empty for none."""
    named = task.get("code")
    if place is None and isinstance(named, str) and named:
        place = folder / named
    return b"" if place is None else pack_code(place)
