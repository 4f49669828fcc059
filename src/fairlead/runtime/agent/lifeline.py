"""Until when the jobs of a node may run without another word from the control plane: two moments in a file, which the agent
moves on whenever its lease is renewed and which every stub looks at. When they have passed, the control plane counts on it that
nothing runs here any more; an agent that was killed cannot see to that, its stubs can.

Standard library only: stubs start fast. Moments are monotonic, and mean nothing after the machine was started anew; a launch
is always ordered after a renewal."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import NamedTuple

_MOMENTS = struct.Struct("=dd")


class Moments(NamedTuple):
    ask: float = math.inf  # when jobs are asked to save and leave
    last: float = math.inf  # when the last of them must be gone


class Lifeline:
    """The agent's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def move(self, ask: float, last: float) -> None:
        os.pwrite(self._file, _MOMENTS.pack(ask, last), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def moments(path: str) -> Moments:
    """As they are now; never where nobody has said anything."""
    try:
        with open(path, "rb") as file:
            return Moments(*_MOMENTS.unpack(file.read(_MOMENTS.size)))
    except (OSError, struct.error):
        return Moments()
