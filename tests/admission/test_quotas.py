"""Quotas: a limit is never exceeded, nobody overtakes in a line, and who waits is told whose quota is how full."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.admission.accept import AcceptUpTo
from fairlead.admission.base import AdmissionChain
from fairlead.admission.quotas import JobResourceQuota, JobTypeQuota, UserJobQuota, UserResourceQuota
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job, Phase, model_of
from fairlead.core.reasons import Reasons
from fairlead.testing import Harness, job
from scenes import state_of, view_of

KINDS = ("LM (batch size 5)", "LM (batch size 10)", "ResNet-50 (batch size 64)", "")
jobs_at_the_door = st.lists(
    st.builds(
        Job,
        name=st.just("j"),
        user=st.sampled_from(["ann", "bob", ""]),
        kind=st.sampled_from(KINDS),
        workers=st.integers(1, 9),
    ),
    max_size=14,
)


def view_with(inside: list[Job], queued: list[Job]):
    return view_of(state_of(Cluster.parse("8xv100:4"), [*inside, *queued], waiting=list(range(len(inside)))))


def one_by_one(inside: list[Job], queued: list[Job], line, asks, limit) -> list[int]:
    """The same, told slowly."""
    taken: Counter[str] = Counter()
    for held in inside:
        taken[line(held)] += asks(held)
    closed, entering = set(), []
    for number, waiting in enumerate(queued, len(inside)):
        mine = line(waiting)
        room = taken[mine] + asks(waiting) <= limit(mine) or taken[mine] == 0
        if mine in closed or not room:
            closed.add(mine)
        else:
            taken[mine] += asks(waiting)
            entering.append(number)
    return entering


def limit_of(name: str) -> float:
    return {"ann": 2, "LM": 2}.get(name, 4)


QUOTAS = {
    "user-job": (UserJobQuota({"ann": 2}, 4), lambda j: j.user, lambda j: 1),
    "user-resource": (UserResourceQuota({"ann": 2}, 4), lambda j: j.user, lambda j: j.workers),
    "job-type": (JobTypeQuota({"LM": 2}, 4), lambda j: model_of(j.kind), lambda j: 1),
}


@pytest.mark.parametrize("which", QUOTAS)
@given(inside=jobs_at_the_door, queued=jobs_at_the_door)
@settings(max_examples=40, deadline=None)
def test_who_enters_is_the_front_of_each_line_as_far_as_there_is_room(which, inside, queued):
    quota, line, asks = QUOTAS[which]
    admitted = quota.admit(view_with(inside, queued))
    assert admitted.jobs.tolist() == one_by_one(inside, queued, line, asks, limit_of)
    everybody = [*inside, *queued]
    taken: Counter[str] = Counter()
    for held in inside:
        taken[line(held)] += asks(held)
    before = dict(taken)
    for number in admitted.jobs.tolist():
        taken[line(everybody[number])] += asks(everybody[number])
    for mine in taken:
        alone = before.get(mine, 0) == 0 and sum(line(everybody[n]) == mine for n in admitted.jobs.tolist()) == 1
        assert taken[mine] <= limit_of(mine) or alone or taken[mine] == before.get(mine)
    left = set(range(len(inside), len(everybody))) - set(admitted.jobs.tolist())
    assert set(admitted.reasons) == left
    for number in left:
        facts = dict(admitted.reasons[number].facts)
        mine = line(everybody[number])
        assert (facts["demand"], facts["limit"]) == (taken[mine], limit_of(mine))


@given(inside=jobs_at_the_door, queued=jobs_at_the_door, at_least=st.integers(1, 9), limit=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_of_large_jobs_only_so_many_are_inside_and_small_ones_pass(inside, queued, at_least, limit):
    admitted = JobResourceQuota(at_least, limit).admit(view_with(inside, queued))
    entering = admitted.jobs.tolist()
    large = [n for n, j in enumerate(queued, len(inside)) if j.workers >= at_least]
    there = sum(j.workers >= at_least for j in inside)
    assert [n for n in entering if n in large] == large[: max(0, limit - there)]
    small = [n for n in range(len(inside), len(inside) + len(queued)) if n not in large]
    assert [n for n in entering if n not in large] == small
    assert dict(admitted.others.facts)["demand"] == there + sum(n in large for n in entering)


@given(inside=jobs_at_the_door, queued=jobs_at_the_door)
@settings(max_examples=40, deadline=None)
def test_a_chain_lets_in_whom_every_link_lets_in_and_tells_the_others_by_which(inside, queued):
    view = view_with(inside, queued)
    first, second = UserJobQuota(default=3), AcceptUpTo(2.0)
    admitted = AdmissionChain((first, second)).admit(view)
    through = first.admit(view)
    passed = [queued[n - len(inside)] for n in through.jobs.tolist()]
    alone = second.admit(view_with(inside, passed)).jobs.tolist()
    assert admitted.jobs.tolist() == through.jobs.tolist()[: len(alone)]
    left = set(range(len(inside), len(inside) + len(queued))) - set(admitted.jobs.tolist())
    assert set(admitted.reasons) == left
    for number in left:
        whose = dict(admitted.reasons[number].facts)["what"]
        assert ("GPUs requested by" in str(whose)) == (number in through.jobs)


def test_who_waits_for_one_link_stands_in_nobodys_way_at_the_next():
    queued = [Job(f"a{i}", user="ann", workers=4) for i in range(3)] + [Job("b", user="bob", workers=4)]
    admitted = AdmissionChain((UserJobQuota(default=1), AcceptUpTo(1.0))).admit(view_with([], queued))
    assert admitted.jobs.tolist() == [0, 3]
    assert str(admitted.reasons[1]) == "admission: Not admitted: jobs of user 'ann' (1 of at most 1)"


def test_a_limit_holds_through_a_whole_run_and_everybody_gets_through():
    chain = Part.chain([Part("user-resource-quota", {"default": 3}), Part("accept-up-to", {"factor": 1.5})])
    made = Harness(SchedulerConfig(Part("las"), chain, round_s=60.0)).cluster("v100:4,v100:4")
    users = [f"u{i % 3}" for i in range(24)]
    made.submit(*(job(f"j{i}").workers(1 + i % 4).lasting(200.0 + i).at(float(i)).with_(user=users[i]) for i in range(24)))

    def look(plan) -> None:
        jobs = made.state.snapshot().jobs
        for user in set(jobs.user.tolist()):
            mine = jobs.workers[jobs.user == user]
            assert mine.sum() <= 3 or len(mine) == 1

    made.loop.on_decision = look
    made.run()
    assert all(made.phase(f"j{i}") is Phase.FINISHED for i in range(24))


def test_the_reason_reaches_whoever_asks():
    made = Harness(SchedulerConfig(Part("fifo"), Part("user-job-quota", {"default": 1}))).cluster("v100:4")
    now = made.submit(*(job(f"j{i}").with_(user="ann") for i in range(3))).round()
    assert now.running == {"j0"}
    assert now.reason("j2") == Reasons.not_admitted("jobs of user 'ann'", demand=1.0, limit=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UserJobQuota(), "admission user-job-quota: .*expected limits by name, or a default for all"),
        (
            lambda: UserResourceQuota(default=0),
            "admission user-resource-quota: field 'default' is '?0'?: expected a whole number",
        ),
        (lambda: JobTypeQuota({"LM": -1}), "admission job-type-quota: field 'limits.LM' is '?-1'?: expected a whole number"),
        (lambda: JobResourceQuota(at_least=0), "admission job-resource-quota: field 'at_least' is '?0'?"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
