"""Trace files: `read_trace_file` and `write_trace`; `docs/reference/trace-formats.md` describes the formats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fairlead.core.errors import InputError, UnknownName
from fairlead.workloads.formats.base import first_row
from fairlead.workloads.formats.csv_traces import HeliosTrace, PhillyTrace, PolluxTrace, TiresiasTrace
from fairlead.workloads.formats.gavel_traces import GavelTrace, ShockwaveTrace
from fairlead.workloads.formats.native_trace import NativeTrace, write_trace
from fairlead.workloads.formats.own_columns import proposed_columns
from fairlead.workloads.formats.pai_trace import PaiTrace
from fairlead.workloads.formats.sacct_trace import SacctTrace
from fairlead.workloads.formats.swf_trace import SwfTrace
from fairlead.workloads.formats.text_fields import head_of
from fairlead.workloads.trace import OnBad, Trace, raise_bad_line

__all__ = ["BUILT_IN", "Format", "read_trace_file", "read_trace_skipping_bad", "write_trace"]


class Format(Protocol):
    """A file format of traces."""

    @property
    def name(self) -> str:
        """The name that users give."""
        ...

    @property
    def summary(self) -> str:
        """One line that lets users see whether their file is of this format."""
        ...

    def sniff(self, path: Path, head: str) -> bool:
        """Whether a file that begins like this is of this format. The head of a folder is empty."""
        ...

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace. Every bad line is given to `on_bad` and left out; a file that is no trace at all is raised. Correct
        lines about other things are in the trace's `skipped`."""
        ...


_FORMATS: tuple[type[Format], ...] = (NativeTrace, GavelTrace, ShockwaveTrace, PolluxTrace, PhillyTrace, TiresiasTrace)
_FORMATS += (SwfTrace, HeliosTrace, PaiTrace, SacctTrace)
BUILT_IN: Mapping[str, Format] = MappingProxyType({made.name: made for made in (each() for each in _FORMATS)})
"""The formats of Fairlead by name, in the order in which they are tried."""


def read_trace_file(
    path: str | os.PathLike[str],
    format: str | None = None,
    on_bad: OnBad = raise_bad_line,
    formats: Mapping[str, Format] = BUILT_IN,
) -> Trace:
    """The trace in a file, of the format of that name or of the first one that recognises it."""
    path = Path(path)
    if format is not None:
        if format not in formats:
            raise UnknownName("trace format", format, formats)
        chosen = formats[format]
        if not os.path.isdir(path):
            head_of(path)
    else:
        chosen = _recognised(path, formats)
    return chosen.read(path, on_bad)


def read_trace_skipping_bad(
    path: str | os.PathLike[str], format: str | None = None, formats: Mapping[str, Format] = BUILT_IN
) -> Trace:
    """The trace without its bad lines, which are listed in `skipped` in the order of their lines."""
    bad: list[InputError] = []
    trace = read_trace_file(path, format, bad.append, formats)
    listed = sorted([*bad, *trace.skipped], key=lambda problem: (problem.source, problem.line or 0))
    return replace(trace, skipped=tuple(listed))


def _recognised(path: Path, formats: Mapping[str, Format]) -> Format:
    folder = os.path.isdir(path)  # unlike Path.is_dir, it never raises
    head = "" if folder else head_of(path)
    for each in formats.values():
        if each.sniff(path, head):
            return each
    if folder:
        raise InputError(path, "a trace file; this is a folder")
    hint = proposed_columns(first_row(head), complete=True) or "; name it with --format, or your columns with --columns"
    raise InputError(path, f"a trace of a known format ({', '.join(formats)}){hint}")
