"""Many jobs on shared accelerators: rates and neighbours against a plain, slow count."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.device_map import ragged
from fairlead.core.job import Job
from fairlead.core.plan import Launches
from fairlead.core.rng import stream
from fairlead.simulator.costs import Costs
from fairlead.simulator.world import World
from fairlead.testing.builders import cluster, random_table
from fairlead.workloads.throughput_tables import ThroughputTable


def uneven_table(seed: int, types: tuple[str, ...]) -> ThroughputTable:
    made = random_table(seed, types)
    factor = stream(seed, "company").uniform(0.2, 0.9, made.paired.shape)
    return ThroughputTable(made.types, made.keys, made.alone, made.spread, made.paired * factor, "made up")


def plain_rate(world: World, number: int) -> float:
    """One after the other, as the definition says: the rate alone, slowed by each mate in the order of their numbers."""
    row, kind = world.row[number], world.type[number]
    rate = (world.table.spread if world.spread[number] else world.table.alone)[row, kind]
    for mate in plain_mates(world, number):
        rate *= world.table.paired[row, world.row[mate], kind] / world.table.alone[row, kind]
    return float(rate)


def plain_mates(world: World, number: int) -> list[int]:
    mine = set(world.devices.of(number).tolist())
    return [n for n in sorted(world.running.tolist()) if n != number and mine & set(world.devices.of(n).tolist())]


@pytest.mark.parametrize("seed", range(6))
def test_rates_and_neighbours_are_those_of_a_plain_count(seed):
    machine = cluster("v100:4,v100:4,k80:4,k80:2")
    table = uneven_table(seed, machine.type_names)
    world, rng = World(machine, table, Costs()), stream(seed, "company", "plan")
    sizes = rng.choice([1, 1, 2, 4], 40)
    for number, size in enumerate(sizes.tolist()):
        world.add({number: Job(f"j{number}", 0.0, 1e9, table.kinds[number % len(table.kinds)], workers=int(size))})
    waiting, now = list(range(40)), 0.0
    for _ in range(12):
        now += 100.0
        chosen = sorted(rng.choice(waiting, min(len(waiting), 8), replace=False).tolist())
        waiting = [n for n in waiting if n not in chosen]
        kinds = rng.integers(0, 2, len(chosen))
        spots = [rng.choice(np.flatnonzero(machine.type_of == kind), sizes[n], replace=False) for n, kind in zip(chosen, kinds)]
        offsets, flat = ragged(spots)
        touched = world.launch(Launches(np.array(chosen), kinds, offsets, flat), now)
        met = {mate for n in chosen for mate in plain_mates(world, n)} - set(chosen)
        assert touched.tolist() == sorted(met)
        assert world.columns["rate"][chosen].tolist() == [plain_rate(world, n) for n in chosen], "not even the last bit differs"
        world.refresh(touched, now)
        leaving = np.sort(rng.choice(world.running, min(len(world.running), 6), replace=False))
        left = {mate for n in leaving.tolist() for mate in plain_mates(world, n)} - set(leaving.tolist())
        assert world.stop(leaving, now, saved=True).tolist() == (sorted(left) if world.devices.shared or left else [])
        world.refresh(np.array(sorted(left), dtype=np.int64), now)
        waiting += leaving.tolist()
        running = np.sort(world.running).tolist()
        assert world.columns["rate"][running].tolist() == [plain_rate(world, n) for n in running]
