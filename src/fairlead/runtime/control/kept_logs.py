"""The ends of logs from nodes that were temporary, such as those of an allocation of Slurm."""

from __future__ import annotations

import base64
import binascii
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.core.errors import FairleadError
from fairlead.journal.control_files import LOGS, ControlFiles
from fairlead.runtime.protocol.messages import LogChunk, LogRequest, LogTail

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 1 << 30  # of all ends of logs; the oldest are removed first
_HEAD = 21  # bytes of a stored end before the text: its offset in the whole log


@dataclass
class KeptLogs:
    """The ends of logs from nodes that have left, among the files of a control plane. `starts_of` tells how often a job was
    launched."""

    files: ControlFiles
    journal: str  # job numbers mean nothing to another one
    starts_of: Callable[[int], int]
    _bytes: float = math.inf  # of all, at most

    def add(self, tail: LogTail) -> None:
        """Store the end of a log of a launch that exists, unless there is one. A disk that does not take it is no reason to
        end."""
        name = self._name(tail.job, tail.generation, tail.rank)
        try:
            if 0 < tail.generation <= self.starts_of(tail.job) and self.files.touch(name) is None:
                content = b"%020d\n" % tail.offset + base64.b64decode(tail.data, validate=True)
                self._bytes += len(content)
                if self._bytes > MAX_KEPT_BYTES:
                    self.clean(-math.inf)
                self.files.write(name, content)
        except (OSError, FairleadError, binascii.Error) as problem:
            log.warning("the end of a log is lost: %s", problem, extra={"job": tail.job, "rank": tail.rank})

    def read(self, request: LogRequest) -> LogChunk | None:
        """Return a chunk of a stored end; it begins later than requested if the beginning is lost. None: there is none."""
        stored = self.files.read(self._name(request.job, request.generation, request.rank)) if request.rank >= 0 else None
        if stored is None:
            return None
        first, data = int(stored[:_HEAD]), stored[_HEAD:]
        offset = max(first, request.offset if request.offset >= 0 else first + len(data) + request.offset)
        return LogChunk(0, offset, base64.b64encode(data[offset - first :][: request.limit]).decode())

    def clean(self, older_than: float) -> None:
        """Remove those that were stored before a Unix time, and the oldest if all are too large."""
        stored = sorted(self.files.listed(LOGS).items(), key=lambda one: one[1].used_s, reverse=True)
        self._bytes = 0.0
        for name, one in stored:
            if self._bytes + one.size > 0.9 * MAX_KEPT_BYTES or one.used_s < older_than:
                self.files.remove(name)
            else:
                self._bytes += one.size

    def _name(self, job: int, generation: int, rank: int) -> str:
        return f"{LOGS}/{self.journal}-{job}-{generation}-{rank}"
