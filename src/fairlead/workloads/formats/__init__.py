"""Trace files: one module per format, and the two ways in and out, `read_trace` and `write_trace`. See `docs/traces.md`."""

from fairlead.workloads.formats.reading import BUILT_IN, Format, read_trace, read_trace_skipping_bad
from fairlead.workloads.formats.writing import write_trace

__all__ = ["BUILT_IN", "Format", "read_trace", "read_trace_skipping_bad", "write_trace"]
