"""Trace files: `read_trace_file` and `write_trace`; `docs/traces.md` describes the formats."""

from fairlead.workloads.formats.native_trace import write_trace
from fairlead.workloads.formats.reader import BUILT_IN, Format, read_trace_file, read_trace_skipping_bad

__all__ = ["BUILT_IN", "Format", "read_trace_file", "read_trace_skipping_bad", "write_trace"]
