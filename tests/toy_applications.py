"""A folder of made-up applications in the format of Pollux' simulator. Step times follow the model of `core.goodput` with known
parameters, so that what is fitted to them can be checked."""

from __future__ import annotations

import itertools
from pathlib import Path

GRAD = (0.02, 0.001)
INSIDE = (0.004, 0.001)
ACROSS = (0.03, 0.002)
SIZES = (32, 128, 512)
LOCAL = (8, 16, 32, 64, 128)
EPOCHS = 4
STEPS_OF_AN_EPOCH = 1000.0


def times(nodes: int, workers: int, local: float) -> tuple[float, float]:
    """A step, and its exchange of gradients; nothing overlaps."""
    alpha, beta = ACROSS if nodes > 1 else INSIDE
    sync = alpha + beta * max(workers - 2, 0) if workers > 1 else 0.0
    return GRAD[0] + GRAD[1] * local + sync, sync


def write_applications(folder: Path, names: tuple[str, ...] = ("toy",)) -> Path:
    for name in names:
        app = folder / name
        app.mkdir(parents=True)
        placements = ["placement,local_bsz,step_time,sync_time"]
        for count in (1, 2, 3):
            for digits in itertools.product("1234", repeat=count):
                if min(digits[at:] + digits[:at] for at in range(count)) == digits:
                    for local in LOCAL:
                        step, sync = times(count, sum(map(int, digits)), local)
                        placements.append(f"{''.join(digits)},{local},{step},{sync}")
        scalability = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
        for nodes in (5, 8):
            for workers in (nodes, 2 * nodes, 4 * nodes):
                for local in LOCAL:
                    step, sync = times(nodes, workers, local)
                    scalability.append(f"{nodes},{workers},{local},{step},{sync}")
        (app / "placements.csv").write_text("\n".join(placements))
        (app / "scalability.csv").write_text("\n".join(scalability))
        for size in SIZES:
            rows = ["progress,iteration,metric,grad_sqr,grad_var"]
            for epoch in range(EPOCHS):
                rows.append(f"{STEPS_OF_AN_EPOCH * (epoch + 1)},{epoch},0.5,{1.0},{2.0 * 4**epoch}")
            (app / f"validation-{size}.csv").write_text("\n".join(rows))
    return folder
