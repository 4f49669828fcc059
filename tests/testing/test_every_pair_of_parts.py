"""Every two parts of a scheduler work together: a few hundred schedulers in which each admission, termination, policy and
placement meets each of the others, on random clusters with random jobs that report their losses."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.job import Phase
from fairlead.core.rng import stream
from fairlead.testing import check_events
from fairlead.testing.contracts.scenes import play_searches

pytestmark = pytest.mark.long

STAGES = ("policy", "admission", "placement", "termination")
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "user-job-quota": [{"limits": {"user-0": 1}, "default": 2}],
    "user-resource-quota": [{"default": 4}],
    "job-type-quota": [{"limits": {"kind-1": 1}, "default": 3}],
    "job-resource-quota": [{"at_least": 2, "limit": 1}],
    "by-loss": [{"threshold": 0.01}, {"threshold": 0.05, "targets": False}],
    "successive-halving": [{"eta": 2}],
    "hyperband": [{"eta": 2, "brackets": 2}],
}
"""For parts that need parameters, or do nothing to see without."""
SEEN_ELSEWHERE = {"ossp"}
"""Another name for a policy that is there."""
WHERE = ("v100:4,v100:2", "v100:2,k80:4", "p100:1,p100:4,k80:2")


def parts(stage: str) -> list[Part]:
    names = [entry.name for entry in Registry.installed().of(stage) if entry.origin == "fairlead"]
    found = [Part(name, given) for name in names if name not in SEEN_ELSEWHERE for given in SETTINGS.get(name, [{}])]
    if stage == "admission":
        found.append(Part.chain([Part("user-job-quota", {"default": 2}), Part("accept-up-to", {"factor": 1.2})]))
    return found


def covering(choices: list[int]) -> list[tuple[int, ...]]:
    """Rows in which every two columns have every pair of values: greedily, from those pairs that are still missing."""
    missing = {
        (a, i, b, j) for a, b in combinations(range(len(choices)), 2) for i in range(choices[a]) for j in range(choices[b])
    }
    rows: list[tuple[int, ...]] = []
    while missing:
        a, i, b, j = min(missing)
        row = {a: i, b: j}
        for column in set(range(len(choices))) - {a, b}:
            gains = [
                sum((min(x, column), *sorted_values(x, row[x], column, value)) in missing for x in row)
                for value in range(choices[column])
            ]
            row[column] = gains.index(max(gains))
        rows.append(tuple(row[column] for column in range(len(choices))))
        missing -= {(x, row[x], y, row[y]) for x, y in combinations(range(len(choices)), 2)}
    return rows


def sorted_values(x: int, at_x: int, y: int, at_y: int) -> tuple[int, int, int]:
    return (at_x, y, at_y) if x < y else (at_y, x, at_x)


PARTS = [parts(stage) for stage in STAGES]
ROWS = covering([len(found) for found in PARTS])


def test_every_pair_is_there() -> None:
    for (a, ours), (b, theirs) in combinations(enumerate(PARTS), 2):
        assert {(row[a], row[b]) for row in ROWS} == {(i, j) for i in range(len(ours)) for j in range(len(theirs))}


@pytest.mark.parametrize("policy", range(len(PARTS[0])), ids=[str(part) for part in PARTS[0]])
def test_parts_work_together(policy: int) -> None:
    for index, row in enumerate(ROWS):
        if row[0] != policy:
            continue
        chosen = {stage: found[at] for stage, found, at in zip(STAGES, PARTS, row)}
        rng = stream(index, "pairs")
        where, seed = WHERE[int(rng.integers(len(WHERE)))], int(rng.integers(1000))
        scheduler = SchedulerConfig(**chosen, round_s=600.0)
        state, events = play_searches(scheduler.build, where, seed, count=4)
        check_events(events, residents=2)
        left = [state.job_of[n].name for n in (*state.live.tolist(), *state.queue.tolist())]
        assert not left, f"{scheduler.to_data()} on {where} with seed {seed}: some never ended: {left}"
        assert (state.all_jobs().phase > int(Phase.RUNNING)).all()
