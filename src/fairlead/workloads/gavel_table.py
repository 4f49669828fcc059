"""Gavel's throughput tables: `{type: {"('kind', workers)": {"null": rate, "('kind', workers)": [mine, the other's]}}}`.
A type whose name ends in `_unconsolidated` has the rates of gangs that are spread. Keys are matched, never evaluated."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.table_draft import RATE, Draft, Key, rate_of

_SPREAD_SUFFIX = "_unconsolidated"
_KEY = re.compile(r"""\(\s*(?:'([^']+)'|"([^"]+)")\s*,\s*([0-9]{1,6})\s*\)""")


def parse_gavel_table(path: Path, text: str) -> ThroughputTable:
    try:
        content = json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as problem:
        raise InputError(path, f"JSON ({problem.msg}, column {problem.colno})", line=problem.lineno) from None
    except _Twin as problem:
        raise InputError(path, "each name once in an object", field="key", value=str(problem)) from None
    except (ValueError, RecursionError) as problem:
        raise InputError(path, f"JSON of rates ({type(problem).__name__})") from None
    draft = Draft(path)
    others: dict[tuple[Key, Key, str], float] = {}
    sections = _object(path, "types", content)
    for section, entries in sections.items():
        plain = section.removesuffix(_SPREAD_SUFFIX)
        if plain not in sections:
            raise InputError(path, "the same type without that ending, too", field="type", value=section)
        name, is_spread = plain.lower(), plain != section
        alone = draft.spread if is_spread else draft.alone
        for written, entry in _object(path, section, entries).items():
            key, place = _key(path, section, written), f"{section} / {written}"
            rates = _object(path, place, entry)
            if "null" not in rates or (key, name) in alone:
                raise InputError(path, 'each key once, with its rate alone under "null"', field=section, value=written)
            draft.sources.setdefault(key, {})[path.name] = None
            alone[key, name] = _rate(path, f"{place} / null", rates["null"])
            for partner, value in rates.items():
                if partner == "null":
                    continue
                other, inner = _key(path, place, partner), f"{place} / {partner}"
                if not isinstance(value, list) or len(value) != 2:
                    raise InputError(path, "two rates, [mine, the other's]", field=inner, value=value)
                mine, theirs = _rate(path, inner, value[0]), _rate(path, inner, value[1])
                if not is_spread:  # a table has room for pairs on as few nodes as possible only
                    draft.paired[key, other, name] = (mine, None)
                    others[other, key, name] = theirs
    for (key, name), rate in draft.alone.items():  # who runs on few nodes runs on many: what is missing or 0 was not measured
        if not draft.spread.get((key, name)):
            draft.spread[key, name] = rate
    for pair, rate in others.items():  # a pair that is listed on one side only
        draft.paired.setdefault(pair, (rate, None))
    return draft.finish()


class _Twin(Exception):
    pass


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twin(next(name for name in names if names.count(name) > 1))
    return found


def _object(path: Path, place: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        raise InputError(path, "an object with something in it", field=place, value=type(value).__name__)
    return value


@lru_cache(maxsize=4096)
def _parsed(written: str) -> Key | None:
    match = _KEY.fullmatch(written)
    return (match[1] or match[2], int(match[3])) if match and int(match[3]) > 0 else None


def _key(path: Path, place: str, written: str) -> Key:
    key = _parsed(written)
    if key is None:
        raise InputError(path, "a key like ('ResNet-50 (batch size 64)', 2)", field=place, value=written)
    return key


def _rate(path: Path, place: str, value: object) -> float:
    rate = None if isinstance(value, str) else rate_of(value)
    if rate is None:
        raise InputError(path, RATE, field=place, value=value)
    return rate
