"""Reading a worker's log chunk by chunk: all of it, its last lines, or what is written while the job runs. It knows no HTTP:
the caller passes a function that returns a chunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairlead.runtime.protocol.code_archive import CHUNK_BYTES

POLL_S = 0.5  # between two requests for a log that may still grow
_CUT_BYTES = 4  # of a character that is cut off at the end of a chunk
_LINE = 4096  # expected bytes of a line when the last lines are read


def read_logs(
    chunk: Callable[[int, int], dict[str, Any]],
    launch: int,
    *,
    tail: int | None = None,
    follow: bool = False,
    poll_s: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a log in order, none of them empty: from a launch on (0: the last) or only its last `tail` lines;
    with `follow` also those of later launches, until the job ends, asking every `poll_s` seconds (0: half a second)."""
    offset = 0
    if tail is not None:
        found = _tail(chunk, launch, tail)
        launch, offset = found["launch"], found["next"]
        if found["text"]:
            yield found
        if not follow:
            return
    while True:
        found = chunk(launch, offset)
        launch = launch or found["launch"]
        if found["text"]:
            offset = found["next"]
            yield found
            if not follow and _reaches_end(found):
                return
        elif follow and found["over"] and found["launches"] > launch:
            launch, offset = launch + 1, 0
        elif not follow or (found["over"] and found["ended"]):
            return
        else:
            time.sleep(poll_s or POLL_S)


def _tail(chunk: Callable[[int, int], dict[str, Any]], launch: int, lines: int) -> dict[str, Any]:
    """Return the last lines."""
    room = _LINE * max(1, lines)
    found = chunk(launch, -room)
    begins_whole = found.get("offset", 0) == 0
    while found["launch"] and not _reaches_end(found):
        following = chunk(found["launch"], found["next"])
        found = {**following, "text": found["text"] + following["text"]}
    kept = found["text"].splitlines(keepends=True)
    if not begins_whole:
        kept = kept[1:] or kept  # the first was cut
    return {**found, "text": "".join(kept[-lines:] if lines else [])}


def _reaches_end(found: Mapping[str, Any]) -> bool:
    """Whether a chunk has all that there was of a log: it is not full. More may have come since, from a job that runs."""
    return bool(found["next"] - found.get("offset", 0) < CHUNK_BYTES - _CUT_BYTES)


def empty_chunk(launch: int, offset: int) -> dict[str, Any]:
    """Return an empty chunk of a log that may still grow."""
    return {"launch": launch, "launches": launch, "over": False, "ended": False, "text": "", "next": offset}
