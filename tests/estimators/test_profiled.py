"""The paper's estimator: profile a little, match, correct."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from worlds import TYPES, changed, families, known, learned, one_of_each, waiting

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.estimators.profiled import Profiled
from fairlead.experiments.inputs import read_table

pytestmark = pytest.mark.long

TABLE = families(count=5, members=4)
SINGLES = [row for row, (kind, workers) in enumerate(TABLE.keys) if kind and workers == 1]


def instant(table=TABLE, **parameters) -> Profiled:
    return Profiled(table, profile_s=0.0, **parameters)


def errors(rates, table=TABLE, rows=SINGLES) -> tuple[float, float]:
    """The mean relative error, alone and in company, of single workers."""
    alone, paired = table.alone[rows], table.paired[np.ix_(rows, rows)]
    there = (paired > 0) & (paired.transpose(1, 0, 2) > 0)
    off = np.abs(rates.paired[np.ix_(rows, rows)] - paired)[there] / paired[there]
    return float((np.abs(rates.alone[rows] - alone) / alone).mean()), float(off.mean())


def test_a_new_kind_is_found_to_be_of_its_family():
    state = one_of_each(TABLE)
    _, lesson = learned(instant(leave_out=True), state)
    for fact in lesson.values.values():
        (kind, _), (like, workers) = fact["of"], fact["like"]
        assert like != kind
        assert like.split("-")[0] == kind.split("-")[0], f"{kind} was taken for {like}"
        assert workers == 1


def test_without_leaving_it_out_a_kind_that_was_measured_in_full_is_itself():
    state = one_of_each(TABLE)
    rates = known(instant(share=1.0), state)
    assert all(fact["like"] == fact["of"] for fact in state.observations.values())
    assert errors(rates) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_the_more_is_measured_the_better_the_estimate():
    off = [errors(known(instant(leave_out=True, share=share), one_of_each(TABLE)))[1] for share in (0.05, 0.2, 0.6)]
    assert off[0] > off[1] > off[2]
    assert off[1] < 0.05  # members of a family are three per cent apart


def test_rates_alone_are_known_or_profiled_on_the_types_that_were_visited():
    state = waiting(Job("gang", 0.0, 1e6, "1-0", 2))
    gang = TABLE.row("1-0", 2)
    assert np.array_equal(known(instant(), state).alone[gang], TABLE.alone[gang])
    no_company = changed(TABLE, paired=np.zeros_like(TABLE.paired))  # nothing but rates alone is measured
    state = waiting(Job("gang", 0.0, 1e6, "1-0", 2))
    rates = known(instant(no_company, alone="profiled", share=0.01), state)
    ((name, rate),) = state.observations["profile 1-0|2"]["alone"]
    on = TYPES.index(name)
    assert rates.alone[gang, on] == rate == TABLE.alone[gang, on]
    others = [t for t in range(3) if t != on]
    assert (rates.alone[gang, others] > 0).all()
    assert (rates.uncertainty[gang, others] > 0).all()
    assert rates.uncertainty[gang, on] == 0.0
    assert not rates.paired.any()


def test_nothing_unmeasured_leaks():
    """New kinds are in no reference. All that was not measured of them is changed in the world; the estimates stay the same."""
    references = tuple(kind for kind in TABLE.kinds if not kind.endswith("-0"))
    mine = [row for row, (kind, _) in enumerate(TABLE.keys) if kind and kind not in references]
    for alone_is in ("known", "profiled"):
        estimator = {"references": references, "alone": alone_is, "share": 0.3}
        first = one_of_each(TABLE)
        here = known(instant(**estimator), first)
        alone, spread, paired = TABLE.alone.copy(), TABLE.spread.copy(), TABLE.paired.copy()
        paired[mine] *= 0.31
        paired[:, mine] *= 0.57
        if alone_is == "profiled":
            alone[mine] *= 3.0
            spread[mine] *= 5.0
        for fact in first.observations.values():
            row = TABLE.row(*fact["of"])
            for name, rate in fact["alone"]:
                alone[row, TYPES.index(name)] = rate
            for kind, workers, name, rate, other in fact["beside"]:
                mate, on = TABLE.row(kind, workers), TYPES.index(name)
                paired[row, mate, on], paired[mate, row, on] = rate, other
        world = changed(TABLE, alone=alone, spread=spread, paired=paired)
        assert (world.paired != TABLE.paired).mean() > 0.1
        second = one_of_each(TABLE)
        there = known(instant(world, **estimator), second)
        assert first.observations == second.observations
        for name in ("alone", "paired", "uncertainty", "paired_uncertainty"):
            np.testing.assert_array_equal(getattr(here, name), getattr(there, name), err_msg=f"{alone_is}: {name}")


def test_what_was_measured_of_a_kind_that_is_left_out_is_not_met_through_whoever_is_like_it():
    """Of two that are most like each other each would stand for the other. What the references tell of these two together, and
    was not timed, changes in the world; what is thought of them stays."""
    table = families(count=2, members=3, sizes=(1,))
    first = one_of_each(table)
    here = known(instant(table, leave_out=True, share=0.1), first)
    facts = first.observations.values()
    like = {table.row(*fact["of"]): table.row(*fact["like"]) for fact in facts}
    timed = {(table.row(*fact["of"]), table.row(*beside[:2])) for fact in facts for beside in fact["beside"]}
    pairs = [(a, b) for a, b in like.items() if not {(a, b), (b, a)} & timed]
    assert pairs
    for a, b in pairs:
        paired = table.paired.copy()
        paired[[a, b], [b, a]] *= 0.999
        second = one_of_each(table)
        there = known(instant(changed(table, paired=paired), leave_out=True, share=0.1), second)
        assert [fact["like"] for fact in facts] == [fact["like"] for fact in second.observations.values()]
        np.testing.assert_array_equal(here.paired[[a, b], [b, a]], there.paired[[a, b], [b, a]])


def test_what_does_not_fit_together_is_not_estimated():
    paired = TABLE.paired.copy()
    a, b = TABLE.row("0-0", 1), TABLE.row("1-1", 1)
    paired[a, b, 2] = 0.0
    world = changed(TABLE, paired=paired)
    rates = known(instant(world, leave_out=True), one_of_each(world))
    assert rates.paired[a, b, 2] == rates.paired[b, a, 2] == 0.0
    assert rates.paired[a, b, 0] > 0.0


def test_profiling_takes_its_time_and_until_then_company_is_as_in_the_mean():
    state = waiting(Job("a", 0.0, 1e6, "0-0"), Job("b", 0.0, 1e6, "1-1"))
    profiled = Profiled(TABLE, profile_s=100.0, accelerators=2, leave_out=True)
    view, lesson = learned(profiled, state)
    ready = [fact["ready_s"] for fact in lesson.values.values()]
    assert all("like" not in fact for fact in lesson.values.values())
    assert 0 < ready[0] < ready[1]
    assert all(second % 100.0 == 0 for second in ready)
    assert lesson.valid_until == ready[0]
    rates = profiled.rates(view)
    a, b = rates.row
    mean = rates.paired[a, b] / rates.alone[a]
    assert np.array_equal(rates.paired[a, a] / rates.alone[a], mean)
    _, lesson = learned(profiled, state, at=ready[0] - 1.0)
    assert not lesson.values
    _, lesson = learned(profiled, state, at=ready[0])
    assert list(lesson.values) == ["profile 0-0|1"]
    assert lesson.values["profile 0-0|1"]["like"][0].startswith("0-")
    assert lesson.valid_until == ready[1]
    _, lesson = learned(profiled, state, at=ready[1] + 50.0)
    assert list(lesson.values) == ["profile 1-1|1"]
    assert lesson.valid_until == np.inf
    assert not np.allclose(known(profiled, state, at=ready[1] + 50.0).paired[a, b] / rates.alone[a], mean)


def test_more_accelerators_set_aside_finish_sooner():
    def ready(accelerators: int) -> float:
        profiled = Profiled(TABLE, profile_s=60.0, accelerators=accelerators, share=0.5)
        return learned(profiled, waiting(Job("a", 0.0, 1e6, "0-0")))[1].valid_until

    times = [ready(count) for count in (1, 2, 4, 100)]
    assert all(slower > faster for slower, faster in pairwise(times))
    assert times[-1] == 60.0


def test_a_kind_is_profiled_once():
    state = waiting(Job("a", 0.0, 1e6, "0-0"), Job("b", 0.0, 1e6, "0-0"), Job("timed"))
    profiled = instant()
    _, lesson = learned(profiled, state)
    assert list(lesson.values) == ["profile 0-0|1"]
    _, lesson = learned(profiled, state, at=300.0)
    assert not lesson.values


def test_measurements_of_the_profile_are_noisy_where_asked_for():
    exact, noisy = (one_of_each(TABLE) for _ in range(2))
    known(instant(), exact)
    rates = known(instant(noise=0.1, seed=0), noisy)
    mine = [entry[3] for fact in exact.observations.values() for entry in fact["beside"]]
    theirs = [entry[3] for fact in noisy.observations.values() for entry in fact["beside"]]
    relative = np.array(theirs) / np.array(mine) - 1
    assert 0.07 < relative.std() < 0.13
    assert (rates.paired_uncertainty[np.ix_(SINGLES, SINGLES)] > 0).all()


def test_references_can_be_a_part_of_the_kinds():
    state = one_of_each(TABLE)
    known(instant(references=0.3, leave_out=True), state)
    names = {fact["like"][0] for fact in state.observations.values()}
    beside = {entry[0] for fact in state.observations.values() for entry in fact["beside"]}
    assert names <= beside
    assert len(beside) <= 6


def test_other_seeds_measure_other_combinations():
    def measured(seed: int) -> list[list[object]]:
        state = waiting(Job("a", 0.0, 1e6, "0-0"))
        known(instant(seed=seed), state)
        return [entry[:3] for entry in state.observations["profile 0-0|1"]["beside"]]

    assert measured(1) == measured(1) != measured(2)


def test_on_the_papers_kinds_it_beats_the_mean_of_the_references(public_data):
    table = read_table(public_data / "gavel" / "simulation_throughputs.json").for_types(TYPES)
    rows = [row for row, (kind, workers) in enumerate(table.keys) if kind and workers == 1]
    assert len(rows) == 26
    waits = Profiled(table, profile_s=1e6, leave_out=True)  # not yet profiled: the mean
    guess = errors(known(waits, one_of_each(table)), table, rows)[1]
    off = [errors(known(instant(table, leave_out=True, share=s), one_of_each(table)), table, rows)[1] for s in (0.2, 0.5)]
    assert off[1] < off[0] < 0.7 * guess


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", 0.0),
        ("share", 1.1),
        ("profile_s", -1.0),
        ("accelerators", 0),
        ("rank", 0),
        ("penalty", 0.0),
        ("noise", -0.1),
        ("references", 2.0),
    ],
)
def test_wrong_parameters_are_told_by_name(field, value):
    with pytest.raises(InputError, match=field):
        Profiled(TABLE, **{field: value})


def test_both_come_by_name_with_their_parameters():
    data = {
        "policy": "las",
        "estimator": {"name": "profiled", "share": 0.1, "references": ["0-0", "1-0"], "alone": "profiled"},
    }
    made = SchedulerConfig.from_data(data).build(TABLE).estimator
    assert made == Profiled(TABLE, share=0.1, references=("0-0", "1-0"), alone="profiled")
    data["estimator"] = {"name": "profiled", "alone": "guessed"}
    with pytest.raises(InputError, match="alone"):
        SchedulerConfig.from_data(data).build(TABLE)
