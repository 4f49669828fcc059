"""Files that are there whole, or as they were before: a full disk or an end half-way leaves no half of one under its name.
Below everything that writes files; what is said to whoever named the path is said there."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.endless import endless


def write_whole(path: Path, content: bytes) -> None:
    """Beside it first, then in its place; a link leads to the file that is replaced. A pipe or a device has no such place."""
    place = Path(os.path.realpath(path))
    draft = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        if endless(path):
            path.write_bytes(content)
            return
        try:
            draft.write_bytes(content)
            draft.replace(place)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as problem:  # of the draft nobody has heard
        raise OSError(problem.errno, problem.strerror, str(path)) from None
