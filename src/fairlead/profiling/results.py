"""Files of measurements: one JSON object per line, the first about the device. Measurements that are in a file are not
repeated. This module reads and checks the files; it does not measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from fairlead.core.errors import InputError, near_or_all, require
from fairlead.files import is_stream
from fairlead.profiling.sharing_mode import SharingMode

_MAX_NUMBER = 1e15
_NUMBERS = ("spread", "utilization", "memory_utilization", "device_memory_mb", "reserved_mb", "allocated_mb", "sm_active")
_TEXTS = ("family", "model", "alone", "problem")


def _wrong_field(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first invalid field and what would be valid; fields that are not used are not checked."""
    paired = "pair" in row
    if paired and not _two(row["pair"], lambda name: isinstance(name, str)):
        return "pair", "the names of two configurations"
    for name in _NUMBERS:
        if name in row and not _number(row[name]):
            return name, "a number of at least 0"
    for name in _TEXTS:
        if name in row and not isinstance(row[name], str):
            return name, "text"
    if "session" in row and not (_number(row["session"]) and isinstance(row["session"], int)):
        return "session", "a whole number"
    if "steps_per_s" in row and not _speed(row["steps_per_s"], paired):
        return "steps_per_s", f"{'two numbers' if paired else 'a number'} of at least 0"
    if "undisturbed_steps_per_s" in row and not (
        _two(row["undisturbed_steps_per_s"], _number) and min(row["undisturbed_steps_per_s"]) > 0
    ):
        return "undisturbed_steps_per_s", "two numbers above 0"
    windows = row.get("windows", 1)  # their number, or the rates of each
    if not isinstance(windows, int) and not (isinstance(windows, list) and windows and all(_speed(w, paired) for w in windows)):
        return "windows", f"steps per second of each, {'two numbers' if paired else 'a number'} of at least 0"
    return None


def _wrong_pair(rows: Mapping[int, Mapping[str, Any]]) -> tuple[int, str, str] | None:
    """The first row, by line, that gives no slowdown; its field; and a valid value."""
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
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER


class ResultsFile:
    """A file to which measurements are added. A line that was cut off by an interruption is dropped and measured again. Each
    opening is a session of its own, maybe on another host: speeds should be compared within one. The fields in `same` must be
    the same for the whole file."""

    def __init__(self, path: Path, about: dict[str, Any], same: Sequence[str] = ()) -> None:
        self.path, self.known = path, dict[str, dict[str, Any]]()
        try:
            lines = list(_whole_lines(path).values()) if path.exists() else []
            if lines:
                _check_same(path, lines[0]["about"], about, same)
                for line in lines[1:]:
                    self.known[line["name"]] = line
                whole = b"".join(orjson.dumps(line) + b"\n" for line in lines)
                if whole != path.read_bytes():
                    draft = path.with_name(f"{path.name}.draft")  # nothing is lost if the disk is full
                    draft.write_bytes(whole)
                    draft.replace(path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(orjson.dumps({"about": about}) + b"\n")
            self.session = 1 + max((int(row.get("session", 1)) for row in self.known.values()), default=0)
        except OSError as problem:
            raise InputError(path, f"a file that can be read and written: {problem.strerror}", field="out") from None

    def add(self, measurement: dict[str, Any]) -> None:
        """Append a measurement."""
        self.known[measurement["name"]] = measurement
        with self.path.open("ab") as file:
            file.write(orjson.dumps(measurement) + b"\n")


def device_of(about: Mapping[str, Any]) -> str:
    """The device of some measurements; a CPU has no name."""
    return str(about.get("device", "cpu"))


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], fields: Sequence[str]) -> None:
    for name in fields:
        kept, found = (device_of(about) if name == "device" else about.get(name) for about in (before, now))
        require(kept == found, path, f"{kept}, as in the rest of this file; pass another --out", name, found)


def _whole_lines(path: Path) -> dict[int, dict[str, Any]]:
    """The complete lines of a file, by their numbers."""
    if is_stream(path):
        raise InputError(path, "a regular file")
    found: dict[int, dict[str, Any]] = {}
    texts = path.read_bytes().split(b"\n")
    for number, text in enumerate(texts, 1):
        if not text:
            continue
        try:
            one = orjson.loads(text)
        except orjson.JSONDecodeError:
            if number == len(texts) and (found or text.startswith(b'{"about":')):  # cut off by an interruption
                break
            raise InputError(
                path, "a JSON object", line=number, field="measurement", value=text[:40].decode(errors="replace")
            ) from None
        if not found and not (isinstance(one, dict) and isinstance(one.get("about"), dict)):
            raise InputError(path, "a file of measurements, whose first line describes the device", line=number, field="about")
        if found and not (isinstance(one, dict) and isinstance(one.get("name"), str)):
            raise InputError(path, "a measurement with the name of what was measured", line=number, field="name")
        if found and (wrong := _wrong_field(one)):
            field, expected = wrong
            raise InputError(path, expected, line=number, field=field, value=one[field])
        found[number] = one
    return found


MEASURED = Path(__file__).parent / "measured"


def measured_sets() -> tuple[str, ...]:
    """The names of the sets that Fairlead contains."""
    return tuple(sorted(path.stem for path in MEASURED.glob("*.jsonl")))


def measured_set(name: str = "h200") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A set that Fairlead contains: what it is about, and the measurements."""
    return read_results(MEASURED / f"{name}.jsonl")


def read_results(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The description of a file, and its measurements."""
    about, rows = _read(path)
    return about, list(rows.values())


def read_pairs(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a file of pairs, with at least one that gives slowdowns."""
    about, rows = _read(path)
    if not any("pair" in row and "problem" not in row for row in rows.values()):
        raise InputError(path, "pairs that were measured, as `profile pairs` writes them", field="pair")
    modes = [mode.value for mode in SharingMode]
    if (sharing := about.get("sharing")) not in modes:
        raise InputError(path, f"a sharing mode ({near_or_all(str(sharing), modes)})", field="sharing", value=sharing)
    if wrong := _wrong_pair(rows):
        line, field, expected = wrong
        raise InputError(path, expected, line=line, field=field, value=rows[line].get(field))
    return about, list(rows.values())


def _read(path: Path) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    try:
        lines = _whole_lines(path)
    except OSError as error:
        raise InputError(path, f"a file of measurements that can be read ({error.strerror})", field="measurements") from None
    except ValueError:
        lines = {}
    require(lines, path, "a file of measurements", "measurements")
    first = min(lines)
    about = lines.pop(first)["about"]
    if not isinstance(about.get("device", ""), str):
        raise InputError(path, "text", line=first, field="device", value=about["device"])
    return about, lines
