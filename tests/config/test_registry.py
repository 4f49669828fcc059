"""Names and where their classes come from: entry points, duplicates, and plug-ins that fail."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fairlead.config.registry import GROUPS, Registered, Registry
from fairlead.core.errors import DuplicateName, FairleadError, UnknownName
from fairlead.core.stages import Admission, Allocator, Estimator, Mechanism, Placement, Policy, Termination
from fairlead.policies.ranking.fifo import Fifo
from fairlead.workloads.formats import BUILT_IN

INSTALLED = Registry.installed()


class Mine:
    """Does as I say.

    More about it.
    """

    paper = "nobody's"


def test_what_is_built_in_comes_by_entry_points_like_everything_else():
    names = {entry.name for entry in INSTALLED.of("policy") if entry.origin == "fairlead"}
    assert names >= {"fifo", "fifo-priority", "sjf", "srtf", "largest-first", "las", "tiresias", "gittins", "max-min-fairness"}
    assert {entry.name for entry in INSTALLED.of("placement")} >= {"first-free", "consolidated", "spread", "tiresias-plus"}
    assert {entry.name for entry in INSTALLED.of("admission")} >= {"accept-all", "accept-up-to"}
    assert {entry.name for entry in INSTALLED.of("format")} >= set(BUILT_IN)
    assert INSTALLED.load("policy", "fifo") is Fifo


@pytest.mark.parametrize(
    ("what", "contract"),
    [
        ("policy", (Policy, Allocator)),
        ("mechanism", Mechanism),
        ("placement", Placement),
        ("admission", Admission),
        ("estimator", Estimator),
        ("termination", Termination),
    ],
)
def test_every_part_that_is_built_in_keeps_its_contract_and_says_what_it_is(what, contract):
    for entry in INSTALLED.of(what):
        assert issubclass(entry.load(), contract), entry.name
        assert entry.summary.endswith("."), f"{entry.name} has no line about itself"
        if what == "policy" and entry.origin == "fairlead":
            assert entry.paper, f"{entry.name} does not say where it comes from"


def test_an_unknown_name_is_answered_with_the_near_ones():
    with pytest.raises(UnknownName, match="unknown policy 'tiresius'; did you mean 'tiresias'"):
        INSTALLED.find("policy", "tiresius")


def test_one_more_can_be_added_without_changing_the_registry_there_is():
    more = INSTALLED.plus("policy", "mine", Mine)
    assert more.load("policy", "mine") is Mine
    assert more.find("policy", "mine").summary == "Does as I say."
    assert more.find("policy", "mine").paper == "nobody's"
    assert more.load("policy", "fifo") is Fifo
    with pytest.raises(UnknownName):
        INSTALLED.find("policy", "mine")


def test_a_name_that_is_there_cannot_be_added_again():
    with pytest.raises(DuplicateName, match="policy 'fifo' already exists, from fairlead"):
        INSTALLED.plus("policy", "fifo", Mine)
    with pytest.raises(DuplicateName, match="policy 'mine' already exists"):
        INSTALLED.plus("policy", "mine", Mine).plus("policy", "mine", Mine)


def test_the_same_name_may_mean_a_policy_and_a_placement():
    both = INSTALLED.plus("policy", "mine", Mine).plus("placement", "mine", Mine)
    assert both.load("placement", "mine") is Mine


def test_a_kind_of_plug_in_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(UnknownName, match="unknown kind of plug-in 'polices'; did you mean 'policy'"):
        INSTALLED.plus("polices", "mine", Mine)


def claimed_twice() -> Registry:
    first, second = (
        Registered("policy", "mine", origin, EntryPoint("mine", f"{origin}:Mine", GROUPS["policy"]))
        for origin in ("alpha", "beta")
    )
    return Registry({"policy": {"mine": (first, second), **{e.name: (e,) for e in INSTALLED.of("policy")}}})


def test_a_name_that_two_packages_claim_is_an_error_for_who_asks_for_it_and_for_nobody_else():
    with pytest.raises(DuplicateName, match="policy 'mine' is defined by alpha and by beta; remove one"):
        claimed_twice().find("policy", "mine")
    assert claimed_twice().load("policy", "fifo") is Fifo


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module_anywhere:Mine", "policy 'mine' of alpha cannot be loaded: No module named 'no_such_module_anywhere'"),
        ("fairlead.policies.ranking.fifo:Nothing", "policy 'mine' of alpha cannot be loaded: .*Nothing"),
        ("fairlead.core.rng:stream", "policy 'mine' of alpha: expected a class, found <function stream"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_told_with_its_package(value, said):
    entry = Registered("policy", "mine", "alpha", EntryPoint("mine", value, GROUPS["policy"]))
    with pytest.raises(FairleadError, match=said):
        entry.load()


# With real packages on the path of another process.


def package(folder: Path, name: str, code: str, entry: str = "mine") -> None:
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fairlead.policies]\n{entry} = {name}:Mine\n")


GOOD = "from fairlead.policies.ranking.fifo import Fifo\nclass Mine(Fifo):\n    'Mine.'\n"
BAD = "raise RuntimeError('I am broken')\n"


def simulate(folder: Path, policy: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead.cli.main", "simulate", "--policy", policy, "--jobs", "3", "--json"]
    path = {"PYTHONPATH": f"{folder}:{Path(__file__).parents[2] / 'src'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=path, capture_output=True, text=True, timeout=120, check=False)


def test_two_packages_that_claim_one_name_and_one_that_is_broken_do_not_disturb_the_others(tmp_path):
    package(tmp_path, "alpha", GOOD)
    package(tmp_path, "beta", GOOD)
    package(tmp_path, "gamma", BAD, "broken")
    twice = simulate(tmp_path, "mine")
    assert twice.returncode == 2
    assert "policy 'mine' is defined by alpha and by beta; remove one" in twice.stderr.replace(
        "beta and by alpha", "alpha and by beta"
    )
    broken = simulate(tmp_path, "broken")
    assert (broken.returncode, broken.stderr) == (
        2,
        "fairlead: error: policy 'broken' of gamma cannot be loaded: I am broken\n",
    )
    fine = simulate(tmp_path, "fifo")
    assert (fine.returncode, fine.stderr) == (0, "")
