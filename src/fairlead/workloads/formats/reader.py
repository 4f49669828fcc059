"""Trace files by the name of their format, or by their look. A format is an object with a name; the table of those that come
with Fairlead is a value, and a longer one can be passed in its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fairlead.core.errors import InputError, UnknownName
from fairlead.workloads.formats.gavel_trace import GavelTrace
from fairlead.workloads.formats.helios_trace import HeliosTrace
from fairlead.workloads.formats.native_trace import NativeTrace
from fairlead.workloads.formats.pai_trace import PaiTrace
from fairlead.workloads.formats.philly_trace import PhillyTrace
from fairlead.workloads.formats.pollux_trace import PolluxTrace
from fairlead.workloads.formats.sacct_trace import SacctTrace
from fairlead.workloads.formats.shockwave_trace import ShockwaveTrace
from fairlead.workloads.formats.swf_trace import SwfTrace
from fairlead.workloads.formats.text_fields import head_of
from fairlead.workloads.formats.tiresias_trace import TiresiasTrace
from fairlead.workloads.trace import OnBad, Trace, raise_it


class Format(Protocol):
    """One way in which traces are written down."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line that tells a person whether their file is of this format."""
        ...

    def sniff(self, path: Path, head: str) -> bool:
        """Whether a file that begins like this is of this format. The head of a folder is empty."""
        ...

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """The trace. Every bad line is given to `on_bad` and then left out; a file that is no trace at all is raised.
        Lines that are in order but outside of the question are in the trace's `skipped`."""
        ...


def _table(*formats: Format) -> Mapping[str, Format]:
    return MappingProxyType({each.name: each for each in formats})


BUILT_IN: Mapping[str, Format] = _table(
    NativeTrace(),
    GavelTrace(),
    ShockwaveTrace(),
    PolluxTrace(),
    PhillyTrace(),
    TiresiasTrace(),
    SwfTrace(),
    HeliosTrace(),
    PaiTrace(),
    SacctTrace(),
)


def read_trace(
    path: str | os.PathLike[str],
    format: str | None = None,
    on_bad: OnBad = raise_it,
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
    trace = read_trace(path, format, bad.append, formats)
    listed = sorted([*bad, *trace.skipped], key=lambda problem: (problem.source, problem.line or 0))
    return replace(trace, skipped=tuple(listed))


def _recognised(path: Path, formats: Mapping[str, Format]) -> Format:
    folder = os.path.isdir(path)  # unlike Path.is_dir, it never raises
    head = "" if folder else head_of(path)
    for each in formats.values():
        if each.sniff(path, head):
            return each
    if folder:
        raise InputError(path, "a trace file; a folder stands there")
    raise InputError(path, f"a trace of a known format ({', '.join(formats)}); name it if it is one of them")
