"""The same inputs give the same bytes: twice, with quiet rounds skipped or not, and with jobs from a list or one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import outage_events, random_process
from fairlead.testing import cluster, random_jobs, random_table

POLICIES = {
    "fifo": Part("fifo"),
    "fifo backfilling": Part("fifo", {"backfill": True}),
    "fifo-priority": Part("fifo-priority", {"backfill": True}),
    "sjf": Part("sjf"),
    "srtf": Part("srtf"),
    "las": Part("las"),
    "las by time": Part("las", {"by": "time"}),
    "tiresias": Part("tiresias", {"thresholds": [400.0, 2500.0]}),
    "tiresias promoting": Part("tiresias", {"thresholds": [400.0, 2500.0], "promote_after": 1.5}),
    "gittins": Part("gittins", {"min_history": 10}),
    "largest-first": Part("largest-first"),
}
COSTS = (Costs(), Costs(launch_s=15.0, restart_s=45.0, checkpoint_s=7.0, checkpoint_every_s=400.0))


def log_of(
    policy: Part,
    where: str,
    seed: int,
    *,
    count: int,
    skip: bool = True,
    round_s: float = 300.0,
    costs: Costs = COSTS[0],
    faults: bool = False,
    placement: str = "consolidated",
    admission: str = "accept-all",
) -> tuple[list[bytes], Loop]:
    machine = cluster(where)
    table = random_table(seed, machine.type_names)
    jobs = random_jobs(seed, count, table=table, largest=min(4, int(machine.size_of_type.max())))
    process = random_process(len(machine.nodes), 20_000.0, 1500.0, seed) if faults else outage_events([])
    scheduler = SchedulerConfig(policy, Part(admission), placement=Part(placement), round_s=round_s)
    backend = SimulatedBackend(machine, table, jobs, costs=costs, faults=process)
    loop = Loop(State(machine), backend, scheduler.build(table), journal=MemoryJournal(), skip_quiet_rounds=skip)
    loop.record(ev.JournalOpened(0.0, machine, scheduler.to_data(), "determinism", None))
    loop.run()
    return [encode(event) for event in loop.journal], loop


def first_difference(ours: list[bytes], theirs: list[bytes]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"event {at}: {ours[at : at + 1]} or {theirs[at : at + 1]}"


@pytest.mark.parametrize("name", POLICIES)
def test_skipping_quiet_rounds_changes_no_byte_of_a_busy_run(name):
    """A hundred jobs that keep eight accelerators busy, with costs, lost nodes, minimum runs and time limits."""
    how = {"count": 100, "costs": COSTS[1], "faults": True, "round_s": 120.0}
    (ours, loop), (theirs, _) = (log_of(POLICIES[name], "v100:4,v100:4", 11, skip=skip, **how) for skip in (True, False))
    assert ours == theirs, first_difference(ours, theirs)
    assert (loop.state.all_jobs().phase > int(Phase.RUNNING)).all()
    assert replay_events(loop.journal).digest() == loop.state.digest()


@pytest.mark.long
@given(
    name=st.sampled_from(sorted(POLICIES)),
    where=st.sampled_from(["v100:4", "v100:2,v100:2,v100:1", "v100:4,k80:4", "v100:2,p100:3,k80:1,k80:4"]),
    seed=st.integers(0, 10_000),
    count=st.integers(1, 40),
    round_s=st.sampled_from([7.0, 60.0, 300.0, 1000.0 / 3]),
    costs=st.sampled_from(COSTS),
    faults=st.booleans(),
    placement=st.sampled_from(
        [
            "consolidated",
            "spread",
            "first-free",
            "tiresias",
            "tiresias-plus",
            "least-network",
            "bandwidth-aware",
            "resource-aware",
        ]
    ),
    admission=st.sampled_from(["accept-all", "accept-up-to"]),
)
@settings(max_examples=40)
def test_skipping_quiet_rounds_changes_no_byte_of_any_run(name, where, seed, count, round_s, **how):
    if how["costs"] is COSTS[1]:
        round_s = max(round_s, 300.0)  # rounds shorter than a restart get nowhere
    ours, theirs = (
        log_of(POLICIES[name], where, seed, count=count, round_s=round_s, skip=skip, **how)[0] for skip in (True, False)
    )
    assert ours == theirs, first_difference(ours, theirs)


@pytest.mark.parametrize("name", ["fifo", "las", "tiresias promoting", "gittins"])
@pytest.mark.parametrize("round_s", [0.0, 300.0])
def test_the_same_run_twice_is_the_same_byte_for_byte(name, round_s):
    how = {"count": 60 if round_s else 12, "faults": True, "round_s": round_s}
    first, second = (log_of(POLICIES[name], "v100:4,k80:4", 5, **how)[0] for _ in range(2))
    assert first == second, first_difference(first, second)


def test_another_seed_is_another_run():
    assert log_of(POLICIES["las"], "v100:4", 1, count=20)[0] != log_of(POLICIES["las"], "v100:4", 2, count=20)[0]


@pytest.mark.parametrize("name", ["fifo", "srtf", "las"])
def test_jobs_added_one_by_one_are_jobs_of_a_list(name):
    machine = cluster("v100:4")
    table = random_table(3, machine.type_names)
    jobs = random_jobs(3, 30, table=table)
    logs = []
    for one_by_one in (False, True):
        backend = SimulatedBackend(machine, table, () if one_by_one else jobs)
        for job in jobs if one_by_one else ():
            backend.add(job)
        stages = SchedulerConfig(POLICIES[name]).build(table)
        loop = Loop(State(machine), backend, stages, journal=MemoryJournal())
        loop.run()
        logs.append([encode(event) for event in loop.journal])
    assert logs[0] == logs[1]
