"""How the accelerators of well-known machines are linked, by the machine's name, so that a cluster file can say `links:
p3.8xlarge` instead of a matrix. Gb/s one way, from data sheets and from what the machines' own tools print; what goes over PCIe
is assumed at 80 Gb/s, as in the catalogue. Nothing here is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Links: TypeAlias = tuple[tuple[float, ...], ...]

NVLINK_2_GBPS = 200.0
"""One NVLink of the second generation, one way: 25 GB/s."""
PCIE_GBPS = 80.0


def _by_nvlinks(*rows: str) -> Links:
    """A digit for each pair: so many NVLinks; 0 goes over PCIe."""
    return tuple(
        tuple(0.0 if i == j else int(digit) * NVLINK_2_GBPS or PCIE_GBPS for j, digit in enumerate(row))
        for i, row in enumerate(rows)
    )


def _switched(accelerators: int, gbps: float) -> Links:
    """Every pair at the full speed of an accelerator."""
    return tuple(tuple(0.0 if i == j else gbps for j in range(accelerators)) for i in range(accelerators))


# Two squares with their diagonals, and a link from each corner to the other square; each V100 has six NVLinks in all.
_HYBRID_CUBE_MESH = _by_nvlinks(
    "01122000",
    "10210200",
    "12020010",
    "21200001",
    "20000112",
    "02001021",
    "00101202",
    "00012120",
)
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
