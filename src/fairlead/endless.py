"""What may never end being read. Below everything that reads files, without imports of its own; what is said to whoever named
such a path is said where it is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def endless(path: Path | str) -> bool:
    """Whether it is a pipe, which is waited for, or a device, which has no end. Not a folder, nor what is not there: of those
    the system itself says what is wrong."""
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):  # the latter of names that no file can have
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))
