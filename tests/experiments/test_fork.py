"""Forks of a cluster: a fork at a past moment repeats what happened; each change does what it says; differences are paired."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import pytest

import fairlead
from fairlead.config.schedulers import Part
from fairlead.core.cluster import Cluster, Node
from fairlead.core.errors import FairleadError
from fairlead.core.job import TIMED, Job
from fairlead.experiments import questions, whatif
from fairlead.experiments.differences import PairedDifference
from fairlead.experiments.fork import Fork, ForkChanges, run_fork
from fairlead.experiments.whatif import WhatIfOptions, ends, past_fork, state_at, what_if
from fairlead.runtime.control.views import rates
from fairlead.workloads.generate import Generator


@cache
def recorded(policy: str = "las", cluster: str = "8xv100:4,8xp100:4") -> tuple:
    """The events of a simulated run."""
    jobs = Generator(60, jobs_per_hour=20, users=4, durations=(3600.0, 7200.0, 18000.0, 36000.0))
    run = fairlead.simulate(jobs, cluster, policy, round_s=300, seed=3)
    return tuple(run.events)


def fork_at(share: float, **how: str) -> Fork:
    events = recorded(**how)
    return past_fork(events, share * events[-1].time).fork


@pytest.mark.parametrize("policy", ["las", "max-min-fairness", "tiresias"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
def test_a_fork_in_the_past_repeats_what_happened(policy: str, share: float) -> None:
    events = recorded(policy)
    then = past_fork(events, share * events[-1].time)
    real, simulated, jobs = then.error(run_fork(then.fork))
    assert jobs > 5
    assert simulated == pytest.approx(real, rel=0.05)


def test_without_changes_nothing_differs() -> None:
    found = what_if(fork_at(0.3), ForkChanges(), WhatIfOptions())
    assert found.metrics["average_jct_s"][2].difference == 0
    assert all(one.difference.difference == 0 for one in (*found.users, *found.jobs))


def test_a_removed_node_is_not_used_and_its_jobs_go_on() -> None:
    fork = fork_at(0.3)
    there = fork.start.view.cluster.node_of == fork.start.view.cluster.number_of_node["v100-0"]
    assert len(fork.start.view.device_map.on(there)), "jobs run there"
    run = run_fork(fork.changed(ForkChanges(remove=("v100-0",))), keep_events=True)
    launched = [event.plan.launches.accelerators for event in run.events if hasattr(event, "plan")]
    assert not there[np.concatenate(launched)].any()
    assert all(job.ends_s < math.inf for job in run.jobs.values())


def test_added_nodes_of_a_new_type_have_modelled_rates() -> None:
    changed = fork_at(0.3).changed(ForkChanges(add=(Node("new-0", "h200", 8), Node("new-1", "odd", 2))))
    table = changed.table
    assert table.types == changed.start.view.cluster.type_names == ("v100", "p100", "h200", "odd")
    rows = slice(1, None)
    assert (table.alone[rows, 2] > table.alone[rows, 0]).all()
    assert (table.alone[rows, 3] == table.alone[rows, 0]).all()
    assert [guess.split(":")[0] for guess in changed.guesses[-2:]] == [
        "rates on h200 are modelled",
        "rates on odd are unknown and assumed to be those on v100",
    ]
    found = what_if(fork_at(0.3), ForkChanges(add=(Node("new-0", "h200", 8),)), WhatIfOptions())
    assert found.metrics["average_jct_s"][2].difference < 0


def test_a_job_less_and_a_job_more() -> None:
    fork = fork_at(0.3)
    waiting = [n for n in fork.start.view.job_of if n not in fork.start.view.jobs.runners.number.tolist()]
    gone, new = waiting[0], Job("mine", submitted_s=0.0, steps=600.0, kind=TIMED, user="eve")
    run = run_fork(fork.changed(ForkChanges(without=(gone,), submit=(new,))))
    assert gone not in run.jobs
    assert run.jobs["mine"].user == "eve"
    assert run.jobs["mine"].ends_s >= 600.0
    found = what_if(fork, ForkChanges(submit=(new,)), WhatIfOptions())
    assert found.starts["mine"][0] == math.inf > found.starts["mine"][1]


def test_a_quota_holds_back_one_user() -> None:
    fork = fork_at(0.1, policy="fifo")
    users = {job.user for job in fork.start.view.job_of.values()}
    for user in sorted(users)[:2]:
        changed = fork.changed(ForkChanges(quotas={user: 1}))
        assert changed.start.scheduler.admission == Part("user-resource-quota", {"limits": {user: 1}})
        again = changed.changed(ForkChanges(quotas={"zoe": 3}))
        assert again.start.scheduler.admission.parameters["limits"] == {user: 1, "zoe": 3}


def test_a_weight_changes_all_jobs_of_a_user() -> None:
    fork = fork_at(0.2, policy="max-min-fairness")
    user = next(iter(fork.start.view.job_of.values())).user
    changed = fork.changed(ForkChanges(weights={user: 5.0}))
    weights = {job.user: job.weight for job in changed.start.view.job_of.values()}
    assert weights.pop(user) == 5.0
    assert {*weights.values()} <= {1.0}


def test_a_node_that_fails_delays_jobs() -> None:
    found = what_if(fork_at(0.3), ForkChanges(faults=(("v100-1", 600.0, 36000.0),)), WhatIfOptions())
    assert found.metrics["makespan_s"][2].difference >= 0
    assert found.metrics["average_jct_s"][2].difference > 0


def live_fork(second: float = 0.3) -> Fork:
    events = recorded()
    state = state_at(events, second * events[-1].time)
    return Fork.of(state, {"rates": rates(state)})


def test_more_and_fewer_arrivals_have_jobs_in_common() -> None:
    fork = live_fork()
    window_s = fork.start.view.time
    plain, less, more = (
        {job.name: job for job in replace(fork, more_arrivals=share).with_arrivals(window_s, 7).start.arrivals}
        for share in (1.0, 0.5, 1.5)
    )
    assert less.items() < plain.items() < more.items()
    assert abs(len(less) - 0.5 * len(plain)) < 0.25 * len(plain)
    assert abs(len(more) - 1.5 * len(plain)) < 0.35 * len(plain)
    assert replace(fork, more_arrivals=0.0).with_arrivals(window_s, 7).start.arrivals == ()


def test_scenarios_give_an_interval() -> None:
    found = what_if(
        live_fork(), ForkChanges(add=(Node("new-0", "v100", 4),)), WhatIfOptions(3, window_s=3600.0), keep_records=True
    )
    control, changed, paired = found.metrics["average_jct_s"]
    assert (found.scenarios, paired.pairs) == (3, 3)
    assert paired.difference == pytest.approx(changed - control)
    assert paired.half_width >= 0
    assert found.runs is not None
    assert [len(run.cluster.nodes) for run in found.runs] == [4, 5]
    assert found.to_dict()["metrics"]["average_jct_s"]["low"] <= paired.difference


def test_an_interval_needs_three_scenarios_and_stays_within_what_is_possible() -> None:
    wide = PairedDifference.of([(0.9, 0.1), (0.2, 0.8), (0.5, 0.5)], of_one=True)
    assert wide.half_width > 1
    assert ends(wide, 1.0) == {"difference": pytest.approx(0.0667, abs=1e-3), "low": -1.0, "high": 1.0}
    assert ends(PairedDifference.of([(0.9, 0.1), (0.2, 0.8)], of_one=True), 1.0)["low"] is None


def test_simulated_arrivals_are_not_in_the_table_of_starts() -> None:
    found = what_if(live_fork(), ForkChanges(arrivals=2.0), WhatIfOptions(1, window_s=3600.0))
    assert not [name for name in found.starts if name.startswith("forecast-")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (ForkChanges(remove=("v100-9",)), "v100-9"),
        (ForkChanges(faults=(("nowhere", 1.0, 2.0),)), "nowhere"),
        (ForkChanges(add=(Node("v100-0", "v100", 4),)), "already has a node"),
        (ForkChanges(without=(99_999,)), "99999"),
    ],
)
def test_what_cannot_be_is_refused(changes: ForkChanges, said: str) -> None:
    with pytest.raises(FairleadError, match=said):
        fork_at(0.3).changed(changes)


def test_a_moment_outside_the_journal_is_refused() -> None:
    events = recorded()
    with pytest.raises(FairleadError, match="outside the journal"):
        past_fork(events, events[-1].time + 1)
    with pytest.raises(FairleadError, match="all of its events"):
        state_at(events[1:], 10.0)
    assert isinstance(state_at(events, 10.0).cluster, Cluster)


def test_without_time_for_a_scenario_both_runs_are_stopped_at_the_same_second() -> None:
    fork, changes = fork_at(0.1), ForkChanges(add=(Node("new-0", "h200", 8),))
    whole = what_if(fork, changes, WhatIfOptions())
    clock = count(200, -1)  # one second for each decision
    found = what_if(fork, changes, WhatIfOptions(), left_s=lambda: float(next(clock)), timelines=True)
    (said,) = [guess for guess in found.guesses if "no time for more" in guess]
    assert said.startswith("simulated only ")
    assert found.metrics["unfinished"][0] > whole.metrics["unfinished"][0] == 0
    assert {row.number for row in found.jobs} < {row.number for row in whole.jobs}
    assert all(0 < values[0] <= 1 for name, values in found.metrics.items() if name == "utilization")


def test_the_nodes_of_a_run_in_a_timeline_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, changes = fork_at(0.3), ForkChanges(remove=("v100-1",))
    whole = what_if(fork, changes, WhatIfOptions(), timelines=True)
    monkeypatch.setattr(whatif, "MAX_TIMELINE_NODES", 0)
    found = what_if(fork, changes, WhatIfOptions(), timelines=True)
    for all_of, cut in zip(whole.timelines, found.timelines):
        pairs = [two for a, b in zip(all_of["jobs"], cut["jobs"]) for two in zip(a["runs"], b["runs"], strict=True)]
        assert pairs
        assert all((b["nodes"], b["more_nodes"]) == ([], len(a["nodes"])) for a, b in pairs)


def test_timelines_are_sent_once() -> None:
    sent = list[dict]()
    request = {"arrivals": 1.5, "scenarios": 3, "window_s": 3600.0, "timelines": True}
    question = {"request": request, "user": "you"}
    questions._what_if(live_fork(), question, None, lambda answer: sent.append(dict(answer)), lambda: math.inf)
    assert [one["scenarios"] for one in sent if "metrics" in one] == [1, 2, 3]
    assert [[*one] for one in sent if "metrics" not in one] == [["kept"]]
    assert not any("timelines" in one for one in sent)


def test_timelines_say_who_runs_where_and_name_no_job_of_other_users() -> None:
    fork = fork_at(0.3)
    user = next(iter(fork.start.view.job_of.values())).user
    one, other = (
        what_if(fork, ForkChanges(remove=("v100-1",)), WhatIfOptions(), timelines=True, visible_to=who) for who in (None, user)
    )
    for everything, mine in zip(one.timelines, other.timelines):
        assert [job["runs"] for job in everything["jobs"]] == [job["runs"] for job in mine["jobs"]]
        hidden = [job for job in mine["jobs"] if job["user"] != user]
        assert hidden
        assert not any(job["user"] or (job["name"] and job["number"] is not None) for job in hidden)
        assert {job["user"] for job in everything["jobs"]} > {user}
    later = [run for job in one.timelines[1]["jobs"] for run in job["runs"] if run["start_s"] >= 0]
    assert later
    assert not any("v100-1" in run["nodes"] for run in later)
    assert all(run["end_s"] > run["start_s"] for run in later)
    assert {row.name for row in other.users} == {user, "other users"}
    assert {row.user for row in other.jobs} == {user, ""}
