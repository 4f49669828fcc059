"""Hierarchical fairness: how weights pass from who can use no more to whom the entity's own policy says, and the textbook way
as a second opinion on random instances."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job, account_levels, with_parents
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.hierarchical import Hierarchical, HierarchicalPerf
from fairlead.policies.allocation.max_min import MaxMinFairnessWaterFillingPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.allocation.partition import StaticPartition
from fairlead.testing import Harness, job
from fairlead.testing.contracts import PolicyContract
from lifting import Share, Textbook, fairly, gains_of, in_order, random_view, time_of
from scenes import state_of, table_of, view_of

WEIGHTS = {"entity-0": 1.0, "entity-1": 2.0, "entity-2": 3.0}


class TestFifoContract(PolicyContract):
    make = lambda: Allocated(HierarchicalPerf(inside="fifo"), RoundMechanism())  # noqa: E731


class TestAgnosticContract(PolicyContract):
    make = lambda: Allocated(Hierarchical(inside="fifo"), RoundMechanism())  # noqa: E731


BOTH = pytest.mark.parametrize("make", [Hierarchical, HierarchicalPerf])


def teams(accelerators, weights=(1.0, 1.0, 1.0)):
    """Figure 6: jobs 1, 2, 3 of the product team, jobs 4 and 5 of the research team."""
    jobs = [Job(f"job {i + 1}", steps=1e6, account="product", weight=w) for i, w in enumerate(weights)]
    jobs += [Job(f"job {i}", steps=1e6, account="research") for i in (4, 5)]
    return view_of(state_of(Cluster.parse(f"{accelerators}xv100:{accelerators}"), jobs))


@BOTH
def test_under_fifo_the_first_one_has_all_the_weight_of_its_entity(make):
    time = time_of(make(but={"research": "fifo"}), teams(2))[:, 0]
    assert time == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0, 0.0])


@BOTH
def test_under_fifo_the_next_one_inherits_from_who_can_use_no_more(make):
    time = time_of(make(but={"research": "fifo"}), teams(3))[:, 0]
    assert time == pytest.approx([0.5, 0.5, 0.5, 1.0, 0.5])  # an accelerator each, and then the third one halved


@BOTH
def test_under_fairness_all_others_of_the_entity_inherit(make):
    policy = make(weights={"product": 2.0}, but={"research": "fifo"})
    time = time_of(policy, teams(4, (1.0, 2.0, 1.0)))[:, 0]
    # Jobs 2 and 4 are full when 1 and 3 have a half; what is left goes 1 : 1 : 1 to jobs 1, 3 (two in all) and 5.
    assert time == pytest.approx([5 / 6, 1.0, 5 / 6, 1.0, 1 / 3])


@BOTH
def test_four_identical_jobs_of_weights_3_1_1_1_end_with_an_accelerator_each(make):
    jobs = [Job(f"j{i}", steps=1e6, account=f"e{i}") for i in range(4)]
    view = view_of(state_of(Cluster.parse("4xv100:4"), jobs))
    assert time_of(make(weights={"e0": 3.0}), view)[:, 0].tolist() == [1.0] * 4


@BOTH
@pytest.mark.parametrize("inside", ["fairness", "fifo"])
def test_entities_share_by_weight_however_many_jobs_they_have(make, inside):
    """As in figure 12: 18 jobs of three entities with weights 1, 2, 3 on 3 accelerators of each type, types alike."""
    jobs = [Job(f"j{i}", steps=1e6, account=f"entity-{i // 6}") for i in range(18)]
    view = view_of(state_of(Cluster.parse("3xv100:3,3xp100:3,3xk80:3"), jobs))
    time = time_of(make(weights=WEIGHTS, inside=inside), view).sum(axis=1).reshape(3, 6)
    assert time.sum(axis=1) == pytest.approx([1.5, 3.0, 4.5])
    if inside == "fifo":
        assert time == pytest.approx(np.array([[1, 0.5, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0.5, 0]]))
    else:
        assert time == pytest.approx(np.array([[0.25], [0.5], [0.75]]).repeat(6, axis=1))


def test_the_queue_goes_on_behind_a_kind_that_is_stuck():
    """The second in line cannot use the type that is left, the third can."""
    table = table_of(("fast", "slow"), {("bound", 1): (1.0, 0.0), ("free", 1): (2.0, 1.0)})
    jobs = [Job(f"j{i}", steps=1e6, kind=kind) for i, kind in enumerate(("bound", "bound", "free"))]
    view = view_of(state_of(Cluster.parse("1xfast:1,1xslow:1"), jobs), 0.0, table)
    assert time_of(HierarchicalPerf(inside="fifo"), view).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]


def second_opinion(view, policy, fifo):
    gain = gains_of(view)
    here = gain.max(axis=1) > 0
    levels = (time_of(policy, view) * gain).sum(axis=1)[here]
    book = Textbook.alone(gain[here], view.jobs.workers[here].astype(float), view.capacity.astype(float))
    share = fairly(view.jobs.weight[here].tolist())
    accounts = []
    for code, name in enumerate(view.names.accounts):
        members = (view.jobs.account[here] == code).nonzero()[0].tolist()
        accounts.append((policy.weights.get(name, 1.0), members, in_order() if name in fifo else share))
    book.check_pareto(levels)
    return levels, book.fill(accounts)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fifo", [(), ("entity-0", "entity-1", "entity-2"), ("entity-1",)], ids=["fair", "fifo", "mixed"])
def test_levels_are_those_of_the_textbook(seed, fifo):
    view = random_view(seed, jobs=5 + seed % 6, types=1 + seed % 4)
    levels, expected = second_opinion(view, HierarchicalPerf(WEIGHTS, but=dict.fromkeys(fifo, "fifo")), fifo)
    assert levels == pytest.approx(expected, abs=1e-6)


def test_prices_that_are_flat_where_the_cluster_is_full_do_not_stop_the_search_early():
    view = random_view(143, jobs=13, types=4)
    levels, expected = second_opinion(view, HierarchicalPerf(WEIGHTS, "fifo"), tuple(WEIGHTS))
    assert levels == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_one_entity_is_water_filling(seed):
    view = random_view(seed, jobs=20, accounts=1)
    assert time_of(HierarchicalPerf({"entity-0": 7.0}), view) == pytest.approx(
        time_of(MaxMinFairnessWaterFillingPerf(), view), abs=1e-6
    )


def recursively(paths: list[str], weights: dict[str, float], job_weights: list[float], fifo: set[str]) -> Share:
    """Gavel's definition for a tree of accounts: a part goes from the root to the accounts with open jobs by their weights, and
    at last to the jobs of an account."""

    def share(still) -> dict[int, float]:
        parts: dict[int, float] = {}

        def divide(part: float, jobs: list[int], depth: int) -> None:
            children: dict[str, list[int]] = {}
            for at in jobs:
                path = paths[at].split("/")
                children.setdefault("/".join([*path, ""][: depth + 1]) if depth <= len(path) else "", []).append(at)
            if list(children) == [""]:  # below the account itself
                inside = in_order() if fifo & {*with_parents(paths[jobs[0]])} else fairly(job_weights)
                parts.update({at: part * mine for at, mine in inside(jobs).items()})
                return
            total = sum(weights.get(name, 1.0) for name in children)
            for name, members in children.items():
                divide(part * weights.get(name, 1.0) / total, members, depth + 1)

        divide(1.0, list(still), 0)
        return parts

    return share


TREE = ("a/x/u", "a/x/v", "a/x", "a/y", "a", "b/x/u", "b/x/v", "b", "c")


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("aware", [True, False])
def test_levels_of_a_tree_are_those_of_the_recursive_definition(seed, aware):
    rng = np.random.default_rng(seed)
    view = random_view(seed, jobs=7 + seed % 5, types=1 + seed % 3 if aware else 1)
    paths = [str(rng.choice(TREE)) for _ in range(len(view.jobs))]
    names = sorted({name for level in account_levels(paths) for name in level})
    weights = {name: float(rng.choice([0.5, 1.0, 2.0, 3.0])) for name in names if rng.random() < 0.7}
    fifo = {name for name in ("a", "a/x", "b/x/u", "c") if rng.random() < 0.4}
    jobs = [replace(view.job_of[n], account=path) for n, path in zip(view.jobs.number.tolist(), paths)]
    view = state_of(view.cluster, jobs).snapshot(0.0).with_changes(estimate=view.estimate)
    make = HierarchicalPerf if aware else Hierarchical
    time = time_of(make(weights, but=dict.fromkeys(fifo, "fifo")), view)
    gain = gains_of(view) if aware else view.jobs.workers[:, None] * (gains_of(view) > 0).astype(float)
    here = gain.max(axis=1) > 0
    levels = (time * gain).sum(axis=1)[here]
    book = Textbook.alone(gain[here], view.jobs.workers[here].astype(float), view.capacity.astype(float))
    own = [path for path, one in zip(paths, here) if one]
    share = recursively(own, weights, view.jobs.weight[here].tolist(), fifo)
    assert levels == pytest.approx(book.fill([(1.0, range(len(own)), share)]), abs=1e-6)


@BOTH
def test_an_account_leaves_its_part_to_its_siblings_first(make):
    """Of 8 GPUs, a and b have 4 each. a/x and a/y have 2 each; a/x can use 1, so a/y has 3."""
    accounts = ["a/x"] + ["a/y"] * 6 + ["b"] * 6
    jobs = [Job(f"j{i}", steps=1e6, account=account) for i, account in enumerate(accounts)]
    time = time_of(make(), view_of(state_of(Cluster.parse("8xv100:8"), jobs)))[:, 0]
    assert time == pytest.approx([1.0, *[3 / 6] * 6, *[4 / 6] * 6])


@BOTH
def test_jobs_of_an_account_itself_are_beside_the_accounts_below_it(make):
    jobs = [Job(f"j{i}", steps=1e6, account=account) for i, account in enumerate(["a"] * 4 + ["a/x"] * 4 + ["b"] * 4)]
    view = view_of(state_of(Cluster.parse("4xv100:4"), jobs))
    time = time_of(make({"a": 3.0, "a/x": 2.0}), view)[:, 0].reshape(3, 4).sum(axis=1)
    assert time == pytest.approx([1.0, 2.0, 1.0])
    time = time_of(make({"a": 3.0, "a/": 2.0}), view)[:, 0].reshape(3, 4).sum(axis=1)
    assert time == pytest.approx([2.0, 1.0, 1.0])


@BOTH
def test_other_levels_below_an_account_change_nothing_for_the_rest(make):
    """The account a as one, and as a tree in which all its jobs are in one account below it."""
    views = []
    for inner in ("a", "a/x/u"):
        jobs = [Job(f"j{i}", steps=1e6, account=account, weight=1.0 + i) for i, account in enumerate([inner] * 4 + ["b"] * 3)]
        views.append(view_of(state_of(Cluster.parse("3xv100:3"), jobs)))
    flat, deep = (time_of(make({"a": 2.0}), view) for view in views)
    assert deep == pytest.approx(flat, abs=1e-12)


def test_a_weight_is_above_0():
    for make in (Hierarchical, HierarchicalPerf):
        with pytest.raises(InputError, match=r"weights\.a"):
            make(weights={"a": 0.0})


def test_it_is_composed_from_a_scheduler_file():
    part = Part("hierarchical-perf", {"weights": {"a": 3}, "inside": "fifo", "but": {"b": "fairness"}})
    harness = Harness(SchedulerConfig(part)).cluster("v100:1")
    harness.submit(*(job(f"{e}{i}").lasting(1e6).with_(account=e) for e in "ab" for i in range(2)))
    harness.loop.run(until=36_000.0)
    run_s = harness.state.snapshot(36_000.0).jobs.run_s / 36_000.0
    assert run_s == pytest.approx([0.75, 0.0, 0.125, 0.125], abs=0.03)
    with pytest.raises(InputError, match="inside"):
        SchedulerConfig(Part("hierarchical", {"inside": "random"})).build(None)


@pytest.mark.parametrize("weight", [0.0, -1.0, 5e-324, 1e308, math.inf, math.nan])
def test_weights_that_no_program_weighs_against_others_are_told(weight: float):
    for made in (Hierarchical, HierarchicalPerf, StaticPartition):
        with pytest.raises(InputError, match=r"field 'weights\.a' is .*from 0\.001 to 1000"):
            made(weights={"a": weight})


@pytest.mark.parametrize("round_s", [5.0, 360.0])
def test_accounts_share_by_weight_where_jobs_arrive_and_leave_in_every_round(round_s: float):
    part = Part("hierarchical-perf", {"weights": {"large": 3}})
    harness = Harness(SchedulerConfig(part, round_s=round_s)).cluster("v100:4")
    harness.submit(*(job(f"small{i}").lasting(1e6).with_(account="small") for i in range(4)))
    for i in range(70):
        harness.submit(job(f"large{i}").lasting(4 * round_s).with_(account="large").at(max(i - 8, 0) * round_s))
    harness.loop.run(until=60 * round_s)
    jobs = harness.state.snapshot(60 * round_s).jobs
    small = [harness.state.job_of[number].account == "small" for number in jobs.number.tolist()]
    assert jobs.run_s[small].sum() / (4 * 60 * round_s) == pytest.approx(0.25, abs=0.03)
