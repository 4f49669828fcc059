"""How a log is read from afar: piece after piece, the last lines of it, or on and on from launch to launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

LOOK_S = 0.5
"""Between two looks at a log that may still grow."""

_LINE = 4096
"""Bytes in which to look for one of the last lines: longer ones are cut."""


def read_logs(
    piece: Callable[[int, int], dict[str, Any]],
    launch: int,
    *,
    tail: int | None = None,
    follow: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """`piece(launch, offset)` is some of a log. What comes out is never empty, and in order. `follow` begins with the launch
    that is asked for (0: the last) and goes on with those after it, until the job ends."""
    offset = 0
    if tail is not None:
        found = _tail(piece, launch, tail)
        launch, offset = found["launch"], found["next"]
        if found["text"]:
            yield found
    while True:
        found = piece(launch, offset)
        launch = launch or found["launch"]
        if found["text"]:
            offset = found["next"]
            yield found
        elif follow and found["over"] and found["launches"] > launch:
            launch, offset = launch + 1, 0
        elif not follow or (found["over"] and found["ended"]):
            return
        else:
            pause(LOOK_S)


def _tail(piece: Callable[[int, int], dict[str, Any]], launch: int, lines: int) -> dict[str, Any]:
    """The last lines there are now; more room is looked at until they are in it."""
    room = _LINE * max(1, lines)
    found = piece(launch, -room)
    begins_whole = found.get("offset", 0) == 0
    while more := (following := piece(found["launch"], found["next"]))["text"] if found["launch"] else "":
        found = {**following, "text": found["text"] + more}
    kept = found["text"].splitlines(keepends=True)
    if not begins_whole:
        kept = kept[1:] or kept  # the first was cut
    return {**found, "text": "".join(kept[-lines:] if lines else [])}
