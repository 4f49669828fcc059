"""Tables whose columns have names of their own: a mapping to the columns of the native format, and a proposal of one for an
error message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairlead.core.errors import InputError, near_or_all

_USUAL = {
    "submitted_s": (
        "submit",
        "submitted",
        "submit_time",
        "submit_s",
        "submission",
        "arrival",
        "arrival_time",
        "arrived",
        "time",
    ),
    "duration_s": ("duration", "runtime", "run_time", "run_s", "runtime_s", "seconds", "length", "elapsed"),
    "steps": ("iterations", "num_steps", "total_steps", "iters"),
    "workers": ("gpus", "gpu", "num_gpus", "num_gpu", "gpu_num", "n_gpus", "ngpus", "replicas", "num_workers", "gang"),
    "name": ("job", "job_id", "jobid", "id", "job_name", "jobname"),
    "kind": ("model", "model_name", "job_type"),
    "user": ("user_id", "user_name", "owner", "username"),
    "account": ("team", "project", "vc", "tenant"),
}
"""What tables often call the columns of the native format."""


def parse_columns(text: str) -> dict[str, str]:
    """A mapping as the command line has it: `submit=submitted_s,gpus=workers`.

    Raises:
        InputError: A part is not NAME=COLUMN, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        own, equals, column = (word.strip() for word in part.rpartition("="))
        if not own or not equals or not column or own in found:
            wanted = "own names and native columns, as in 'submit=submitted_s,gpus=workers', each once"
            raise InputError("--columns", wanted, field="columns", value=text)
        found[own] = column
    return found


def with_native_names(
    header: Iterable[str], columns: Mapping[str, str], known: Sequence[str], path: Path, line: int | None
) -> list[str]:
    """The header with the mapped names replaced. A column that is neither mapped nor known gets an empty name: it is not read.

    Raises:
        InputError: A mapped column is not in the header or not in the format, or two columns have one name.
    """
    names = list(header)
    for own, column in columns.items():
        if own not in names:
            raise InputError(
                path, f"a column of this name for --columns; the header has {', '.join(names[:20])}", line=line, field=own
            )
        if column not in known:
            raise InputError(
                "--columns", f"a column of the native format ({near_or_all(column, known)})", field=own, value=column
            )
    renamed = [columns.get(name, name if name in known else "") for name in names]
    for name in renamed:
        if name and renamed.count(name) > 1:
            raise InputError(path, "one column for each native column; --columns or the header has two", line=line, field=name)
    return renamed


def proposed_columns(header: Iterable[str], *, complete: bool = False) -> str:
    """A proposal for --columns, by usual names; empty without any, or if `complete`, where it lacks a column that is needed."""
    names = [name.strip() for name in header]
    taken, parts = {name for name in names if name in _USUAL}, []
    for column, usual in _USUAL.items():
        own = next((name for name in names if name.lower() in usual), None)
        if own is not None and column not in taken and not (column == "steps" and "duration_s" in taken):
            parts.append(f"{own}={column}")
            taken.add(column)
    if not parts or (complete and ("submitted_s" not in taken or not taken & {"steps", "duration_s"})):
        return ""
    return f"; if these are columns of your own, try --columns {','.join(parts)}"
