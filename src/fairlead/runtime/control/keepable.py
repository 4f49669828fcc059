"""The description of a scheduler as a journal keeps it. Whether it can be kept must be known before anything is begun with one:
what cannot be spelled would end the loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fairlead.core.errors import InputError, JournalError
from fairlead.core.events import SchedulerSwitched
from fairlead.engine.codec import decode, encode

LARGEST_SCHEDULER = 1 << 16


def check_keepable(scheduler: Mapping[str, Any]) -> None:
    """Raises what is in the way, with the field that it stands in."""
    for field, value in scheduler.items():
        try:
            spelled = encode(SchedulerSwitched(0.0, {field: value}, ""))
            json.dumps(value, allow_nan=False)
        except (JournalError, TypeError, ValueError, RecursionError):
            wanted = "what a journal can keep: finite numbers of 64 bits, words, lists, and names with one of these each"
            raise InputError("scheduler", wanted, field=str(field), value=value) from None
        if len(spelled) > LARGEST_SCHEDULER:
            raise InputError("scheduler", f"at most {LARGEST_SCHEDULER:,} bytes", field=str(field))
    if len(encode(SchedulerSwitched(0.0, scheduler, ""))) > LARGEST_SCHEDULER:
        raise InputError("scheduler", f"at most {LARGEST_SCHEDULER:,} bytes")


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two would be kept alike."""
    return _kept(one) == _kept(other)


def _kept(scheduler: Mapping[str, Any]) -> Mapping[str, Any]:
    event = decode(encode(SchedulerSwitched(0.0, scheduler, "")))
    assert isinstance(event, SchedulerSwitched)
    return event.scheduler
