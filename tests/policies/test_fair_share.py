"""Fair share: Slurm's formula, a memory with a half-life, and weights of users and accounts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.policies.ranking.fair_share import FairShare
from fairlead.testing import Harness, PolicyContract, job
from scenes import state_of, view_of


class TestFairShare(PolicyContract):
    make = partial(FairShare, half_life_s=3000.0)


class TestFairShareStrict(PolicyContract):
    make = partial(FairShare, backfill=False, accounts={"lab": 2.0})
    jobs = 14


class TestFairSharePreempting(PolicyContract):
    make = partial(FairShare, preempt=True, half_life_s=2000.0, users={"": 3.0})
    jobs = 14


def harness(policy: Part, round_s: float = 10.0) -> Harness:
    return Harness(SchedulerConfig(policy, round_s=round_s)).cluster("v100:2")


def of_user(state) -> dict[str, float]:
    spent: dict[str, float] = {}
    for number, seconds in zip(state.all_jobs().number.tolist(), state.all_jobs().accelerator_s.tolist()):
        name = state.job_of[number].user
        spent[name] = spent.get(name, 0.0) + seconds
    return spent


def test_the_user_with_less_recent_gpu_time_goes_first():
    made = harness(Part("fair-share"))
    made.submit(*(job(f"a{n}").lasting(100.0).with_(user="ann") for n in range(6)))
    made.loop.run(until=50.0)
    made.submit(job("b").lasting(100.0).with_(user="bob"))
    made.loop.run(until=150.0)
    running = {made.state.job_of[number].name for number in made.state.running.tolist()}
    assert running == {"b", "a2"}  # bob's job overtakes four of ann's that were submitted before it


def test_time_is_forgotten_with_the_half_life():
    """ann used 1,000 GPU-seconds long ago, bob 300 just now."""
    for half_life_s, first in ((1e9, "bob"), (50.0, "ann")):
        made = harness(Part("fair-share", {"half_life_s": half_life_s}))
        made.submit(job("a").lasting(500.0).with_(user="ann", workers=2))
        made.loop.run()
        made.submit(job("b").lasting(150.0).with_(user="bob", workers=2))
        made.loop.run()
        made.submit(*(job(user).lasting(100.0).with_(user=user, workers=2) for user in ("ann", "bob")))
        made.loop.run(until=made.loop.backend.now + 20.0)
        (number,) = made.state.running.tolist()
        assert made.state.job_of[number].user == first


@pytest.mark.parametrize(("users", "share"), [({}, 0.5), ({"ann": 3.0}, 0.75)])
def test_gpu_time_is_shared_by_weight(users, share):
    made = harness(Part("fair-share", {"preempt": True, "half_life_s": 1e7, "users": users}))
    made.submit(*(job(f"{user}{n}").lasting(1e6).with_(user=user) for user in ("ann", "bob") for n in range(2)))
    made.loop.run(until=8000.0)
    view = made.state.snapshot(8000.0).jobs
    spent = {user: float(view.accelerator_s[view.user == code].sum()) for code, user in enumerate(("ann", "bob"))}
    assert sum(spent.values()) == 16000.0
    assert spent["ann"] / 16000.0 == pytest.approx(share, abs=0.01)


def test_an_account_with_many_users_gets_no_more_than_its_weight():
    made = harness(Part("fair-share", {"preempt": True, "half_life_s": 1e7}))
    made.submit(*(job(f"l{n}").lasting(1e6).with_(user=f"u{n}", account="large", workers=2) for n in range(4)))
    made.submit(job("s").lasting(1e6).with_(user="solo", account="small", workers=2))
    made.loop.run(until=8000.0)
    spent = made.state.snapshot(8000.0).jobs.accelerator_s
    assert spent[4] / 16000.0 == pytest.approx(0.5, abs=0.02)
    assert spent[:4] == pytest.approx([2000.0] * 4, rel=0.1)


def test_the_exponent_is_usage_over_share_on_both_levels():
    """Account a has weight 3 and b 1. ann and bob of account a have used 600 and 200 GPU-seconds, cy of b the other 200."""
    jobs = [Job("x", steps=1e6, user=user, account=account) for user, account in (("ann", "a"), ("bob", "a"), ("cy", "b"))]
    view = view_of(state_of(Cluster.parse("1xv100:4"), jobs), 0.0)
    holders = np.unique(view.jobs.account * (1 << 32) + view.jobs.user)
    policy = FairShare(users={"ann": 2.0}, accounts={"a": 3.0})
    accounts, users = policy.exponents(view, holders, np.array([600.0, 200.0, 200.0]))
    assert accounts == pytest.approx([0.8 / 0.75, 0.8 / 0.75, 0.2 / 0.25], rel=1e-6)
    assert users == pytest.approx([0.75 / (2 / 3), 0.25 / (1 / 3), 1.0], rel=1e-6)


def test_the_memo_agrees_with_what_users_have_received():
    """Without a half-life, up to a round for each end."""
    made = harness(Part("fair-share", {"half_life_s": 1e12, "preempt": True}))
    made.submit(*(job(f"{user}{n}").lasting(37.0 + 11 * n).with_(user=user) for user in ("ann", "bob", "cy") for n in range(5)))
    made.loop.run(until=145.0)
    memo, state = made.state.memo, made.state
    received = of_user(state)
    for holder, used in zip(memo["holders"].tolist(), memo["used"].tolist()):
        name = state._names.users[holder % (1 << 32)]
        assert used == pytest.approx(received[name], abs=2 * 10.0 + 0.01 + 2 * 10.0 * len(state.running))


def test_weights_and_half_life_have_bounds():
    for wrong in ({"half_life_s": 0.0}, {"users": {"ann": 0.0}}, {"accounts": {"lab": -1.0}}, {"users": {"ann": 1e308}}):
        with pytest.raises(InputError, match=r"a number above 0|a number from 0\.001 to 1000"):
            FairShare(**wrong)


def test_accounts_of_a_tree_are_compared_level_by_level():
    """Users of a/x, a/y, a itself and b have used 100, 300, 200 and 400 GPU-seconds."""
    made = (("ann", "a/x"), ("bob", "a/y"), ("cy", "a"), ("di", "b"))
    jobs = [Job("j", steps=1e6, user=user, account=account) for user, account in made]
    view = view_of(state_of(Cluster.parse("1xv100:4"), jobs), 0.0)
    holders = view.jobs.account * (1 << 32) + view.jobs.user
    order = holders.argsort()
    policy = FairShare(accounts={"a": 2.0, "a/y": 3.0})
    levels = [
        column[order.argsort()]
        for column in policy.exponents(view, holders[order], np.array([100.0, 300.0, 200.0, 400.0])[order])
    ]
    first, second, user = levels
    assert first == pytest.approx([0.6 / (2 / 3)] * 3 + [0.4 / (1 / 3)], rel=1e-6)
    assert second == pytest.approx([(1 / 6) / 0.2, 0.5 / 0.6, (1 / 3) / 0.2, 1.0], rel=1e-6)
    assert user == pytest.approx([1.0] * 4, rel=1e-6)
