"""A cluster as a small YAML file.

types:                                   # optional: what the bundled catalogue does not know, or knows otherwise
  v100: {memory_gb: 32, price_per_hour: 2.5}
nodes:
  - {count: 4, type: v100, accelerators: 4, cpus: 32, memory_gb: 256, network_gbps: 10, rack: a}
  - {name: big, type: h200, accelerators: 2, links: [[0, 900], [900, 0]]}
  - {type: v100, accelerators: 8, links: p3.16xlarge}
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from fairlead.config.yaml_source import Value, read_yaml
from fairlead.core.cluster import MAX_TYPES, AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError, near_or_all, require
from fairlead.files import is_stream

# How the accelerators of well-known machines are linked, by the machine's name, so that a cluster file can say `links:
# p3.8xlarge` instead of a matrix. Gb/s one way, from data sheets and from what the machines' own tools print; what goes over
# PCIe
# is assumed at 80 Gb/s, as in the catalogue. Nothing here is measured.

Links: TypeAlias = tuple[tuple[float, ...], ...]

NVLINK_2_GBPS = 200.0
"""One NVLink of the second generation, one way: 25 GB/s."""
PCIE_GBPS = 80.0


def _by_nvlinks(*rows: str) -> Links:
    """Parse a digit for each pair: its number of NVLinks; 0: PCIe."""
    return tuple(
        tuple(0.0 if i == j else int(digit) * NVLINK_2_GBPS or PCIE_GBPS for j, digit in enumerate(row))
        for i, row in enumerate(rows)
    )


def _switched(accelerators: int, gbps: float) -> Links:
    """Every pair at the full speed of an accelerator."""
    return tuple(tuple(0.0 if i == j else gbps for j in range(accelerators)) for i in range(accelerators))


# Two squares with their diagonals, and a link from each corner to the other square; each V100 has six NVLinks in all.
_HYBRID_CUBE_MESH = _by_nvlinks("01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120")
_ONE_SQUARE = tuple(row[:4] for row in _HYBRID_CUBE_MESH[:4])

LINKS: Mapping[str, Links] = {
    "p3.8xlarge": _ONE_SQUARE,  # 4 × V100: half of a p3.16xlarge. 0–3, 1–2 and 2–3 are double
    "p3.16xlarge": _HYBRID_CUBE_MESH,  # 8 × V100
    "dgx-1-v100": _HYBRID_CUBE_MESH,
    "dgx-2": _switched(16, 1200.0),  # 16 × V100 behind NVSwitch: six NVLinks each
    "p4d.24xlarge": _switched(8, 2400.0),  # 8 × A100 behind NVSwitch: 300 GB/s one way
    "dgx-a100": _switched(8, 2400.0),
    "p5.48xlarge": _switched(8, 3600.0),  # 8 × H100 behind NVSwitch: 450 GB/s one way
    "dgx-h100": _switched(8, 3600.0),
    "dgx-h200": _switched(8, 3600.0),
}
"""By machine."""


TYPE_KEYS: Mapping[str, str] = {
    "memory_gb": "Memory of one GPU in GB. Default: the catalogue's, or unlimited.",
    "price_per_hour": "Price of one GPU for an hour: a number, a list of [second, price], or a CSV file of these. Default: "
    "the catalogue's price, or 0.",
}
NODE_KEYS: Mapping[str, str] = {
    "type": "GPU type of the node, such as `v100`. Required.",
    "accelerators": "Number of GPUs or similar devices of the node. Required.",
    "name": "Name of the node. Default: the type and a number. With `count`, the prefix of the names.",
    "count": "Number of nodes like this. Default: 1.",
    "cpus": "CPU cores of the node. Default: unlimited.",
    "memory_gb": "Host memory of the node in GB. Default: unlimited.",
    "network_gbps": "Network bandwidth of the node in Gb/s. Default: 0, which means unknown.",
    "links": "Gb/s between the GPUs, one way: a square matrix, or a machine such as `p3.16xlarge`.",
    "rack": "Name of the rack of the node. Default: none; nodes without a rack count as one rack.",
}
"""The keys of a type and of a node in a cluster file, and what each means."""
MOST_ACCELERATORS, MOST_PRICES = 1_000_000, 1_000_000
_MAX_NAME = 128
_NAME = re.compile(rf"(?!\.)[A-Za-z0-9._-]{{1,{_MAX_NAME}}}\Z")
LOWEST_PRICE, HIGHEST_PRICE = 1e-4, 1e6


def read_cluster(text: str, known: Sequence[AcceleratorType] = ()) -> Cluster:
    """A cluster from a short text such as `8xv100:4,16xp100:4`, or from the YAML file of that name."""
    if text.endswith((".yaml", ".yml")) or (len(text) < 1000 and os.path.isfile(text)):
        cluster = cluster_from(read_yaml(text), known)
    else:
        cluster = Cluster.parse(text, known)
    require(len(cluster.types) <= MAX_TYPES, "cluster", f"at most {MAX_TYPES} GPU types", "types", len(cluster.types))
    return cluster


def cluster_from(value: Value, known: Sequence[AcceleratorType] = ()) -> Cluster:
    """Return the cluster of a YAML value; `known` types need no entry of their own."""
    fields = value.mapping(("types", "nodes"))
    types = {type_.name: type_ for type_ in known}
    if "types" in fields:
        for name, entry in (entries := fields["types"].mapping()).items():
            if any(name != other and name.lower() == other.lower() for other in entries):
                raise entry.error(f"one entry for {name.lower()}; types are the same in upper and lower case")
            types[name.lower()] = _type(name.lower(), entry, types.get(name.lower()))
    require("nodes" in fields, value.source, "a list of nodes", "nodes")
    nodes: list[Node] = []
    total = 0
    for entry in fields["nodes"].items():
        more = _nodes(entry, len(nodes))
        nodes += more
        total += sum(node.accelerators for node in more)
        if total > MOST_ACCELERATORS:
            raise entry.error(f"at most {MOST_ACCELERATORS:,} GPUs in all")
    if not nodes:
        raise fields["nodes"].error("at least one node")
    twice = [name for name, times in Counter(node.name for node in nodes).items() if times > 1]
    if twice:
        raise InputError(value.source, "a unique name for each node", field="name", value=twice[0])
    used = dict.fromkeys(node.type for node in nodes)
    return Cluster(tuple(nodes), tuple(types.get(name, AcceleratorType(name)) for name in used))


def _type(name: str, entry: Value, before: AcceleratorType | None) -> AcceleratorType:
    fields = entry.mapping(TYPE_KEYS)
    old = before or AcceleratorType(name)
    memory = fields["memory_gb"].number("GB above 0", above=True) if "memory_gb" in fields else old.memory_gb
    if "price_per_hour" not in fields:
        return AcceleratorType(name, memory, old.price_per_hour, old.price_changes)
    return AcceleratorType(name, memory, *_prices(fields["price_per_hour"]))


def _prices(value: Value) -> tuple[float, tuple[tuple[float, float], ...]]:
    """The price at second 0 and its changes: of a number, of a list of [second, price], or of a CSV file with both."""
    if isinstance(value.data, str) and value.data.strip().endswith(".csv"):
        series = _price_file(Path(value.source).parent / value.data.strip())
    elif isinstance(value.data, list):
        wanted = "a second of at least 0 and a price, as in [3600, 1.5]"
        pairs = [list(entry.items()) for entry in value.items()]
        if any(len(pair) != 2 for pair in pairs):
            raise value.error(wanted)
        series = [(second.number(wanted), price.number("a price of at least 0")) for second, price in pairs]
    else:
        series = [(0.0, value.number("a price of at least 0, a list of [second, price], or a .csv file"))]
    if any(price and not LOWEST_PRICE <= price <= HIGHEST_PRICE for _, price in series):
        raise value.error(f"prices of 0, or from {LOWEST_PRICE:g} to {HIGHEST_PRICE:,.0f} per hour")
    if not series or series[0][0] != 0 or any(one >= other for (one, _), (other, _) in pairwise(series)):
        raise value.error("prices from second 0 on, at ascending seconds, as in [[0, 2.5], [3600, 1.5]]")
    return series[0][1], tuple(series[1:])


def _price_file(path: Path) -> list[tuple[float, float]]:
    """The pairs of a CSV file with the columns `second` and `price_per_hour`."""
    series: list[tuple[float, float]] = []
    columns = ("second", "price_per_hour")
    require(not is_stream(path), path, "a regular file")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            require({*columns} <= {*(reader.fieldnames or ())}, path, f"the columns {' and '.join(columns)}")
            for row in reader:
                require(len(series) < MOST_PRICES, path, f"at most {MOST_PRICES:,} prices")
                second, price = (_amount(path, reader.line_num, name, row[name]) for name in columns)
                series.append((second, price))
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(path, f"a readable CSV file ({error})") from error
    return series


def _amount(path: Path, line: int, field: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or "_" in (text or ""):  # Python reads 1_0 as 10
        raise InputError(path, "a number of at least 0", line=line, field=field, value=text)
    return number


def _nodes(entry: Value, already: int) -> list[Node]:
    fields = entry.mapping(NODE_KEYS)
    for required in ("type", "accelerators"):
        if required not in fields:
            raise InputError(entry.source, "a value; every node needs one", line=entry.line, field=required)
    type_name = fields["type"].text("a GPU type, such as v100").lower()
    size = fields["accelerators"].whole("a whole number of at least 1", 1)
    count = fields["count"].whole("a whole number of at least 1", 1) if "count" in fields else 1
    if size * count > MOST_ACCELERATORS:
        raise fields["accelerators"].error(f"at most {MOST_ACCELERATORS:,} GPUs")
    cpus, memory_gb, network_gbps = (
        fields[name].number("a number of at least 0") if name in fields else default
        for name, default in (("cpus", float("inf")), ("memory_gb", float("inf")), ("network_gbps", 0.0))
    )
    links = _links(fields["links"], size) if "links" in fields else ()
    rack = _name(fields["rack"], "the name of a rack") if "rack" in fields else ""
    base = _name(fields["name"], "the name of a node") if "name" in fields else type_name
    alone = count == 1 and "name" in fields
    names = [base] if alone else [f"{base}-{already + index}" for index in range(count)]
    return [Node(name, type_name, size, cpus, memory_gb, network_gbps, links, rack=rack) for name in names]


def _name(value: Value, what: str) -> str:
    """A name, which may become that of a folder or a label."""
    text = value.text(what)
    if not _NAME.match(text):
        raise value.error(f"{what}: letters, digits, '.', '_' and '-', at most {_MAX_NAME}, and not '.' first")
    return text


def _links(value: Value, size: int) -> tuple[tuple[float, ...], ...]:
    if isinstance(value.data, str):
        named = LINKS.get(value.data.strip().lower())
        if named is None:
            raise value.error(f"a matrix of Gb/s, or a machine whose links are known ({near_or_all(value.data, LINKS)})")
        if len(named) != size:
            raise value.error(f"a machine of {size} GPUs; this one has {len(named)}")
        return named
    rows = tuple(tuple(cell.number("Gb/s of at least 0") for cell in row.items()) for row in value.items())
    if len(rows) != size or any(len(row) != size for row in rows):
        raise value.error(f"a {size} × {size} matrix of Gb/s")
    return rows
