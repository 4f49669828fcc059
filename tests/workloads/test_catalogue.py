"""The catalogue is modelled; these are the claims it makes all the same, those of the Gavel paper first."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cluster import Node
from fairlead.core.errors import UnknownName
from fairlead.core.events import NodeAdded
from fairlead.core.job import model_of
from fairlead.engine.codec import decode, encode
from fairlead.workloads.catalogue import (
    DEMANDS,
    DEVICES,
    Interconnect,
    accelerator_type,
    accelerator_types,
    catalogue,
    claims,
    gang_step_times,
    memory_gb_of,
    shared_rates,
    step_times,
)

TABLE = catalogue()
TYPES = ("k80", "p100", "v100", "a100", "h100", "h200")
PRICE = {t.name: t.price_per_hour for t in accelerator_types()}
kinds = st.sampled_from(TABLE.kinds)
devices = st.sampled_from(range(len(DEVICES)))


def rate(kind: str, type_name: str, workers: int = 1) -> float:
    return float(TABLE.alone[TABLE.row(kind, workers), TABLE.types.index(type_name)])


def speedup(kind: str) -> float:
    return rate(kind, "v100") / rate(kind, "k80")


def cheapest(kind: str) -> str:
    return max(("k80", "p100", "v100"), key=lambda name: rate(kind, name) / PRICE[name])


# what there is


def test_the_26_kinds_of_table_2():
    sizes: dict[str, int] = {}
    for kind in TABLE.kinds:
        sizes[model_of(kind)] = sizes.get(model_of(kind), 0) + 1
    assert sizes == {
        "ResNet-18": 5, "ResNet-50": 4, "Transformer": 5, "A3C": 1, "LM": 5, "Recommendation": 5, "CycleGAN": 1,
    }  # fmt: skip
    assert "ResNet-50 (batch size 64)" in TABLE.kinds
    assert {"A3C", "CycleGAN"} < set(TABLE.kinds)


def test_six_types_and_the_gang_sizes():
    assert TABLE.types == TYPES
    assert TABLE.source == "modelled"
    for kind in TABLE.kinds:
        gangs = model_of(kind) in ("ResNet-18", "ResNet-50", "Transformer", "LM")
        assert TABLE.workers_of(kind) == ((1, 2, 4, 8) if gangs else (1,))


def test_a_type_that_joins_a_cluster_is_the_one_that_its_journal_has():
    """The digest of a state has their text: 16 and 16.0 differ there."""
    for name in ("v100", "unheard-of"):
        joined = NodeAdded(0.0, 0, Node("n0", name, 4), accelerator_type(name))
        assert repr(decode(encode(joined))) == repr(joined)


def test_types_carry_memory_and_price():
    assert [(t.name, t.memory_gb) for t in accelerator_types()] == list(zip(TYPES, (12, 16, 16, 40, 80, 141)))
    assert [PRICE[name] for name in TYPES[:3]] == [0.45, 1.46, 2.48]
    assert all(price > 0 for price in PRICE.values())


def test_row_0_is_timed_and_everything_fits_alone():
    assert (TABLE.alone[0] == 1).all()
    assert (TABLE.spread[0] == 1).all()
    assert (TABLE.alone > 0).all()
    assert not TABLE.paired[0].any()
    assert max(map(memory_gb_of, TABLE.kinds)) <= 12


def test_it_is_one_value_that_nobody_can_write_to():
    assert catalogue() is TABLE
    with pytest.raises(ValueError, match="read-only"):
        TABLE.alone[1, 0] = 7


def test_a_kind_it_does_not_know_is_named():
    with pytest.raises(UnknownName, match=r"ResNet-50 \(batch size 64\)"):
        memory_gb_of("ResNet-50 (batch size 65)")


# what the Gavel paper reports (Figure 1)


def test_a3c_gains_twofold_and_resnet_50_nearly_tenfold():
    assert 1.8 <= speedup("A3C") <= 2.2
    assert 9.0 <= max(speedup(kind) for kind in TABLE.kinds if model_of(kind) == "ResNet-50") < 10.0
    gains = {kind: speedup(kind) for kind in TABLE.kinds}
    assert min(gains.values()) >= 1.5
    assert max(gains.values()) <= 10.5
    assert model_of(max(gains, key=gains.__getitem__)) == "ResNet-50"


def test_per_dollar_a3c_is_best_on_k80_and_resnet_50_on_v100():
    assert cheapest("A3C") == "k80"
    assert {cheapest(kind) for kind in TABLE.kinds if model_of(kind) == "ResNet-50"} == {"v100"}
    # "For many models, the older P100 GPU is competitive or cheaper": cheaper than the V100 for half of them here.
    older = [kind for kind in TABLE.kinds if rate(kind, "p100") / PRICE["p100"] > rate(kind, "v100") / PRICE["v100"]]
    assert len(older) >= len(TABLE.kinds) / 2


def test_larger_batches_gain_more_from_a_faster_device():
    for model in ("ResNet-18", "ResNet-50", "Transformer", "LM", "Recommendation"):
        gains = [speedup(kind) for kind in TABLE.kinds if model_of(kind) == model]
        assert gains == sorted(gains)


# laws


def test_newer_types_are_never_slower():
    assert (np.diff(TABLE.alone, axis=1) >= 0).all()
    assert (np.diff(TABLE.spread, axis=1) >= 0).all()
    assert (np.diff(TABLE.alone[1:, :5], axis=1) > 0).all()


def test_a_larger_batch_takes_longer_and_trains_more_samples():
    for one, other in pairwise(DEMANDS):
        if model_of(one.kind) == model_of(other.kind):
            slow, fast = TABLE.alone[TABLE.row(other.kind, 1)], TABLE.alone[TABLE.row(one.kind, 1)]
            assert (slow < fast).all()
            assert (slow * other.samples > fast * one.samples).all()


@pytest.mark.parametrize("kind", [kind for kind in TABLE.kinds if len(TABLE.workers_of(kind)) > 1])
def test_gangs_grow_sublinearly_and_suffer_from_being_spread(kind):
    sizes = np.array(TABLE.workers_of(kind))[:, None]
    rows = [TABLE.row(kind, n) for n in sizes[:, 0].tolist()]
    for rates in (TABLE.alone[rows], TABLE.spread[rows]):
        assert (np.diff(rates, axis=0) > 0).all()
        efficiency = rates / sizes / rates[0]
        assert (np.diff(efficiency, axis=0) < 0).all()
        assert (efficiency[0] == 1).all()
    assert (TABLE.spread[rows[0]] == TABLE.alone[rows[0]]).all()
    assert (TABLE.spread[rows[1:]] < TABLE.alone[rows[1:]]).all()


def test_communication_hurts_the_language_model_most():
    v100 = TABLE.types.index("v100")
    kinds = [kind for kind in TABLE.kinds if 8 in TABLE.workers_of(kind)]
    kept = {kind: TABLE.spread[TABLE.row(kind, 8), v100] / rate(kind, "v100", 8) for kind in kinds}
    assert min(kept, key=kept.__getitem__) == "LM (batch size 5)"
    assert kept["LM (batch size 5)"] < 0.5
    assert kept["ResNet-50 (batch size 128)"] > 0.85


# pairs


def test_a_pair_never_makes_a_member_faster():
    assert (TABLE.paired >= 0).all()
    assert (TABLE.paired <= TABLE.alone[:, None, :]).all()
    assert ((TABLE.paired > 0) == (TABLE.paired.transpose(1, 0, 2) > 0)).all()  # both run, or neither


def test_pairs_are_of_one_size_and_fit_together():
    memory = {kind: memory_gb_of(kind) for kind in TABLE.kinds}
    for column, accelerator in enumerate(accelerator_types()):
        for r, (kind, workers) in enumerate(TABLE.keys[1:], 1):
            for q, (other, others) in enumerate(TABLE.keys[1:], 1):
                fits = workers == others and memory[kind] + memory[other] <= accelerator.memory_gb
                assert (TABLE.paired[r, q, column] > 0) == fits


def test_light_jobs_hardly_notice_each_other_and_heavy_ones_halve():
    light, heavy = TABLE.row("A3C", 1), TABLE.row("ResNet-50 (batch size 64)", 1)
    v100 = TABLE.types.index("v100")
    kept = TABLE.paired[:, :, v100] / TABLE.alone[:, None, v100]
    assert kept[light, light] > 0.9
    assert 0.42 < kept[heavy, heavy] < 0.52
    assert kept[light, heavy] + kept[heavy, light] > 1.3  # so sharing is worth it
    assert TABLE.paired[heavy, heavy, TABLE.types.index("k80")] == 0  # 2 × 6.3 GB in 12


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2), st.lists(st.floats(0.01, 100), min_size=2, max_size=2))
def test_sharing_never_uses_more_than_the_whole_device(busy, alone):
    u, rates = np.array(busy)[:, None], np.array(alone)[:, None]
    paired = shared_rates(rates, u, np.ones((2, 2, 1), dtype=bool))
    used = sum(busy[i] * paired[i, 1 - i, 0] / alone[i] for i in (0, 1))
    assert used <= 1 + 1e-9
    assert (paired <= rates[:, None, :]).all()


# the model's own behaviour


@given(kinds, devices, st.floats(1.01, 10), st.sampled_from(["tflops", "bandwidth_gbs"]))
def test_a_better_device_never_slows_a_step(kind, number, factor, figure):
    device = DEVICES[number]
    better = replace(device, **{figure: getattr(device, figure) * factor})
    before, after = step_times([d for d in DEMANDS if d.kind == kind], [device, better]).step[0]
    assert after <= before


@given(kinds, devices, st.integers(2, 64), st.floats(0.1, 500), st.floats(1.01, 10))
def test_a_better_link_never_slows_a_gang_nor_beats_one_worker(kind, number, workers, link, factor):
    demand = [d for d in DEMANDS if d.kind == kind]
    times = step_times(demand, [DEVICES[number]])
    size = np.array([workers])
    slow = gang_step_times(times, demand, size, Interconnect(np.array([link]), 10, 0.02))
    fast = gang_step_times(times, demand, size, Interconnect(np.array([link * factor]), 10, 0.02))
    assert times.step[0, 0] < fast[0, 0] <= slow[0, 0]


@given(kinds, devices, st.floats(1.5, 20))
def test_host_time_does_not_scale_with_the_device(kind, number, factor):
    device = DEVICES[number]
    better = replace(
        device,
        tflops=device.tflops * factor,
        bandwidth_gbs=device.bandwidth_gbs * factor,
        small_kernel_us=device.small_kernel_us / factor,
    )
    times = step_times([d for d in DEMANDS if d.kind == kind], [device, better])
    host = times.step - times.busy
    assert host[0, 0] == pytest.approx(host[0, 1])
    assert times.busy[0, 0] / times.busy[0, 1] == pytest.approx(factor)
    assert times.step[0, 0] / times.step[0, 1] < factor


def test_the_claims_can_be_printed_by_anyone():
    run = subprocess.run([sys.executable, "-m", "fairlead.workloads.catalogue"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == claims()
    assert "modelled, not measured" in claims()
    assert all(kind in claims() for kind in TABLE.kinds)


def test_the_page_says_what_the_command_prints():
    page = (Path(__file__).resolve().parents[2] / "docs/reference/throughput-catalogue.md").read_text()
    printed = {line[:33].strip(): line[33:].split() for line in claims().splitlines()}
    rows = [line.replace("*", "").strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\|.*×.*\|", line)]
    quoted = {kind: figures for kind, *figures in rows if kind in TABLE.kinds}
    assert len(quoted) == 7
    assert all(printed[kind] == figures for kind, figures in quoted.items())
