"""What stands in a row of measurements, and what is wrong with one that somebody else wrote or damaged. It knows no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 1e15

NUMBERS = ("spread", "utilization", "memory_utilization", "device_memory_mb", "reserved_mb", "allocated_mb", "sm_active")
TEXTS = ("family", "model", "alone", "problem")


def wrong_field(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first field that cannot be, and what would be right; of fields that nobody reads, nothing is asked."""
    paired = "pair" in row
    if paired and not _two(row["pair"], lambda name: isinstance(name, str)):
        return "pair", "the names of two configurations"
    for name in NUMBERS:
        if name in row and not _number(row[name]):
            return name, "a number from 0 on"
    for name in TEXTS:
        if name in row and not isinstance(row[name], str):
            return name, "text"
    if "session" in row and not (_number(row["session"]) and isinstance(row["session"], int)):
        return "session", "a whole number"
    if "steps_per_s" in row and not _speed(row["steps_per_s"], paired):
        return "steps_per_s", f"{'two numbers' if paired else 'a number'} from 0 on"
    if "undisturbed_steps_per_s" in row and not (
        _two(row["undisturbed_steps_per_s"], _number) and min(row["undisturbed_steps_per_s"]) > 0
    ):
        return "undisturbed_steps_per_s", "two numbers above 0"
    windows = row.get("windows", 1)  # how many, or what was seen in each
    if not isinstance(windows, int) and not (isinstance(windows, list) and windows and all(_speed(w, paired) for w in windows)):
        return "windows", f"steps per second of each, {'two numbers' if paired else 'a number'} from 0 on"
    return None


def wrong_among_pairs(rows: Mapping[int, Mapping[str, Any]]) -> tuple[int, str, str] | None:
    """Of rows by their lines: the first from which no slowdown can be told, its field, and what would be right."""
    by_itself = {row.get("alone", row["name"]) for row in rows.values() if "pair" not in row and "problem" not in row}
    for line, row in rows.items():
        if "problem" in row:
            continue
        speeds = row.get("steps_per_s", 0)
        if not min(speeds if isinstance(speeds, list) else [speeds]) > 0:
            return line, "steps_per_s", "steps per second above 0, of both where it is a pair"
        if "pair" not in row and "spread" not in row:
            return line, "spread", "by how much it varied, in a measurement of one by itself"
        if "undisturbed_steps_per_s" not in row and not by_itself.issuperset(row.get("pair", ())):
            return line, "pair", "each of a pair by itself in the same file: speeds are of one host"
    return None


def _speed(value: Any, paired: bool) -> bool:
    return _two(value, _number) if paired else _number(value)


def _two(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(fits, value))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST
