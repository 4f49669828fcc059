"""Throughput tables as files: read the native columns (CSV or Parquet) and Gavel's JSON, write the native columns, and fill in
missing gang sizes. This module does not know which rates a scheduler sees.

Native columns, one rate a row: `kind`, `workers`, `type`, `steps_per_s` (of the whole gang; 0: does not fit), and where
they are needed `placement` (consolidated or spread; consolidated), `partner_kind` and `partner_workers` (empty: alone) and
`source` (the file's name). A kind that is not listed on a type does not fit there. Where spread is not listed it is as fast
as consolidated for one worker, and for gangs of a type of which nothing spread is listed; other gangs do not run spread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.columns import significant
from fairlead.core.errors import InputError, UnknownName, require
from fairlead.core.job import TIMED
from fairlead.workloads.formats.text_fields import (
    PARQUET_MAGIC,
    BadField,
    check_width,
    parquet_rows,
    parse_json,
    parse_name,
    parse_workers,
    table_rows,
    whole_file,
    write_table,
)
from fairlead.workloads.throughput_tables import RATE_EXPECTED, Key, TableDraft, ThroughputTable, parse_rate, table_sources
from fairlead.workloads.trace import raise_bad_line

_SPREAD_SUFFIX = "_unconsolidated"
_KEY = re.compile(r"""\(\s*(?:'([^']+)'|"([^"]+)")\s*,\s*([0-9]{1,6})\s*\)""")


def parse_gavel_table(path: Path, text: bytes) -> ThroughputTable:
    """Gavel's tables: `{type: {"('kind', workers)": {"null": rate, "('kind', workers)": [mine, the other's]}}}`.

    A type whose name ends in `_unconsolidated` has the rates of spread gangs. Keys are matched, never evaluated."""
    content = parse_json(path, text)
    draft = TableDraft(path)
    others: dict[tuple[Key, Key, str], float] = {}
    sections = _object(path, "types", content)
    for section, entries in sections.items():
        plain = section.removesuffix(_SPREAD_SUFFIX)
        require(plain in sections, path, "the same type without that ending, too", "type", section)
        name, is_spread = plain.lower(), plain != section
        alone = draft.spread if is_spread else draft.alone
        for written, entry in _object(path, section, entries).items():
            key, place = _key(path, section, written), f"{section} / {written}"
            rates = _object(path, place, entry)
            if "null" not in rates or (key, name) in alone:
                raise InputError(path, 'each key only once, with its rate alone under "null"', field=section, value=written)
            draft.sources.setdefault(key, {})[path.name] = None
            alone[key, name] = _rate(path, f"{place} / null", rates["null"])
            for partner, value in rates.items():
                if partner == "null":
                    continue
                other, inner = _key(path, place, partner), f"{place} / {partner}"
                if not isinstance(value, list) or len(value) != 2:
                    raise InputError(path, "two rates, [this job's, the other job's]", field=inner, value=value)
                mine, theirs = _rate(path, inner, value[0]), _rate(path, inner, value[1])
                if not is_spread:  # pairs of a table are consolidated
                    draft.paired[key, other, name] = (mine, None)
                    others[other, key, name] = theirs
    for at, rate in draft.alone.items():
        draft.spread[at] = draft.spread.get(at) or rate  # missing or 0: not measured, as it runs spread, too
    for pair, rate in others.items():  # a pair that is listed on one side only
        draft.paired.setdefault(pair, (rate, None))
    return draft.finish()


def _object(path: Path, place: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        raise InputError(path, "an object that is not empty", field=place, value=type(value).__name__)
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
    rate = None if isinstance(value, str) else parse_rate(value)
    if rate is None:
        raise InputError(path, RATE_EXPECTED, field=place, value=value)
    return rate


COLUMNS = ("kind", "workers", "type", "placement", "partner_kind", "partner_workers", "steps_per_s", "source")
REQUIRED = ("kind", "workers", "type", "steps_per_s")
PLACEMENTS = ("consolidated", "spread")
MODELLED = "modelled"


def read_throughputs(path: Path) -> ThroughputTable:
    """Read a table; the start of the file determines whether it is Parquet, Gavel's JSON or native CSV."""
    raw = whole_file(path)
    if raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return parse_gavel_table(path, raw)
    rows: Iterator[tuple[int, Sequence[Any]]]
    if raw.startswith(PARQUET_MAGIC):
        header, rows, _ = parquet_rows(path)
        line = None
    else:
        rows = table_rows(path, raise_bad_line)
        line, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    for name in names:
        if name not in COLUMNS or names.count(name) > 1:
            raise InputError(path, f"each of {', '.join(COLUMNS)} at most once", line=line, field="header", value=name)
    for name in REQUIRED:
        if name not in names:
            raise InputError(path, f"a column '{name}'", line=line, field="header", value=",".join(names))
    draft = TableDraft(path)
    for number, row in rows:
        try:
            check_width(row, len(names))
            _add_rate(draft, {name: _cell(value) for name, value in zip(names, row)}, number)
        except BadField as bad:
            raise bad.at(path, number) from None
    return draft.finish()


def write_throughputs(table: ThroughputTable, path: Path) -> None:
    """Write the native columns: Parquet where the name ends in .parquet, otherwise CSV. Reading gives the same table."""
    write_table(path, COLUMNS, list(_rows(table)))


def fill_workers(table: ThroughputTable, wanted: Iterable[Key]) -> ThroughputTable:
    """The table with a row for every wanted (job type, workers) that is missing, marked as modelled.

    The rate per worker is interpolated linearly in log2(workers) between measured sizes. Beyond the largest it falls by the
    last ratio per doubling, at least 1/2 (more workers are not slower in sum) and at most 1 (not better than linear). Below the
    smallest size, and from a single size, it is constant. Where a neighbouring size does not fit, the new one does not fit
    either.
    """
    missing = [key for key in dict.fromkeys(wanted) if key[0] != TIMED and key not in table.row_of]
    if not missing:
        return table
    alone, spread = [], []
    for kind, workers in missing:
        require(workers >= 1, "throughputs", "a whole number of workers, at least 1", "workers", workers)
        sizes = sorted(table.workers_of(kind))
        if not sizes:
            raise UnknownName("kind of job", kind, table.kinds)
        rows = [table.row(kind, size) for size in sizes]
        one_node = significant(_rate_at(workers, sizes, table.alone[rows]))
        many = one_node if workers == 1 else significant(_rate_at(workers, sizes, table.spread[rows]))
        never_better = (table.spread[rows] <= table.alone[rows]).all(axis=0)
        alone.append(one_node)
        spread.append(np.where(never_better, np.minimum(many, one_node), many))
    old, new = len(table.keys), len(table.keys) + len(missing)
    paired = np.zeros((new, new, len(table.types)))
    paired[:old, :old] = table.paired
    sources = tuple(table.source_of(row) for row in range(old)) + (MODELLED,) * len(missing)
    return ThroughputTable(
        table.types,
        (*table.keys, *missing),
        np.concatenate((table.alone, alone)),
        np.concatenate((table.spread, spread)),
        paired,
        *table_sources(sources),
    )


def _rate_at(workers: int, sizes: Sequence[int], rates: Floats) -> Floats:
    each = rates / np.array(sizes, dtype=np.float64)[:, None]
    position, at = np.log2(sizes), math.log2(workers)
    if workers <= sizes[0]:
        return np.asarray(each[0] * workers, dtype=np.float64)
    if workers > sizes[-1]:
        ratio = np.ones(rates.shape[1])
        if len(sizes) > 1:
            np.divide(each[-1], each[-2], out=ratio, where=each[-2] > 0)
            ratio = np.clip(ratio ** (1 / (position[-1] - position[-2])), 0.5, 1.0)
        return np.asarray(each[-1] * ratio ** (at - position[-1]) * workers, dtype=np.float64)
    above = int(np.searchsorted(position, at))
    share = (at - position[above - 1]) / (position[above] - position[above - 1])
    low, high = each[above - 1], each[above]
    return np.where((low > 0) & (high > 0), (low + share * (high - low)) * workers, 0.0)


def _rows(table: ThroughputTable) -> Iterator[tuple[str, int, str, str, str, int | None, float, str]]:
    for row, (kind, workers) in enumerate(table.keys[1:], 1):
        source = table.source_of(row)
        for column, name in enumerate(table.types):
            for placement, rates in zip(PLACEMENTS, (table.alone, table.spread)):
                yield kind, workers, name, placement, "", None, float(rates[row, column]), source
    for row, partner, column in zip(*(index.tolist() for index in np.nonzero(table.paired))):
        key, other, rate = table.keys[row], table.keys[partner], float(table.paired[row, partner, column])
        yield *key, table.types[column], PLACEMENTS[0], *other, rate, table.source_of(row)


def _cell(value: object) -> str:
    return "" if value is None or value != value else str(value).strip()


def _add_rate(draft: TableDraft, cells: dict[str, str], line: int) -> None:
    key = (parse_name("kind", cells["kind"]), parse_workers("workers", cells["workers"]))
    type_name = parse_name("type", cells["type"]).lower()
    placement = cells.get("placement", PLACEMENTS[0])
    rate = parse_rate(cells["steps_per_s"])
    if rate is None:
        raise BadField("steps_per_s", cells["steps_per_s"], RATE_EXPECTED)
    if placement not in PLACEMENTS:
        raise BadField("placement", placement, " or ".join(PLACEMENTS))
    draft.sources.setdefault(key, {})[cells.get("source", draft.path.name)] = None
    partner_kind, partner_workers = cells.get("partner_kind", ""), cells.get("partner_workers", "")
    if partner_kind or partner_workers:
        if placement != PLACEMENTS[0]:
            raise BadField("placement", placement, "consolidated for a pair")
        partner = (parse_name("partner_kind", partner_kind), parse_workers("partner_workers", partner_workers))
        duplicate = draft.paired.setdefault((key, partner, type_name), (rate, line)) != (rate, line)
    else:
        rates = draft.alone if placement == PLACEMENTS[0] else draft.spread
        duplicate = (key, type_name) in rates
        rates[key, type_name] = rate
    if duplicate:
        raise BadField("kind", key[0], "each rate only once")
