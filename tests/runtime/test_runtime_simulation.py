"""The runtime under faults, on a virtual clock: each seed is another cluster, other jobs and other faults."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("greenlet", reason="the simulation of the runtime needs greenlet")

from former_defects import DEFECTS, FormerDefect

from fairlead.testing.runtime_simulation.command import main, shrink
from fairlead.testing.runtime_simulation.injected_faults import Fault
from fairlead.testing.runtime_simulation.scenario import run_scenario

pytestmark = pytest.mark.long

SEEDS, AT_ONCE = 200, 20


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold_whatever_fails(first: int) -> None:
    broken = [f"seed {seed}: {found}" for seed in range(first, first + AT_ONCE) if (found := run_scenario(seed).violation)]
    assert not broken


def test_a_seed_gives_the_same_run_every_time() -> None:
    one, other = run_scenario(7), run_scenario(7)
    assert one.log == other.log
    assert (one.events, one.commands, one.faults) == (other.events, other.commands, other.faults)


@pytest.mark.parametrize("seed", [3, 81])  # in 81 a job finishes as it leaves a drained node, and does not start elsewhere
def test_a_run_without_faults_ends_all_jobs(seed: int) -> None:
    calm = run_scenario(seed, [])
    assert calm.violation == ""
    assert any("is acknowledged" in text for _, _, text in calm.log)


def test_nodes_come_and_go_while_jobs_run() -> None:
    runs = [run_scenario(seed, []) for seed in range(12)]
    assert [run.violation for run in runs] == [""] * len(runs)
    said = [(subject, text) for run in runs for _, subject, text in run.log]
    for name in ("extra-0", "v100-0"):
        assert ("operator", f"node {name} is removed") in said


@pytest.mark.parametrize("defect", [one for one in DEFECTS if one.kinds], ids=lambda defect: defect.name)
def test_a_defect_that_was_mended_is_found_when_it_is_put_back(defect: FormerDefect, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the faults that show it; `benchmarks/put_back_defects.py` finds it among all faults."""
    with monkeypatch.context() as patch:
        defect.put_back(patch)
        seed = next((seed for seed in range(300) if run_scenario(seed, kinds=defect.kinds).violation), None)
    assert seed is not None
    assert run_scenario(seed, kinds=defect.kinds).violation == ""


def test_orders_to_any_session_are_found_when_they_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rare, so the seed is chosen: an agent returns after its node was given up, while the loop waits for the database."""
    faults = [Fault("agent-killed", 8.0, 0, 15.0), Fault("database-unreachable", 15.0, 0, 12.0)]
    assert run_scenario(49, faults).violation == ""
    (defect,) = [one for one in DEFECTS if one.name == "any-session"]
    defect.put_back(monkeypatch)
    assert run_scenario(49, faults).violation


def test_the_workers_of_a_gang_keep_their_ranks_over_a_restart() -> None:
    """Its launch has reached one of two nodes when the control plane is killed."""
    kinds = ("slow-network", "control-plane-killed")
    assert [found for seed in range(5) if (found := run_scenario(seed, kinds=kinds).violation)] == []


def test_a_run_leaves_the_signals_of_its_process_alone() -> None:
    """Shims ignore signals when they end: an interrupt must end a simulation."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    run_scenario(3)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_the_faults_that_matter_are_found() -> None:
    faults = [Fault("slow-network", float(at), 0, 1.0) for at in range(9)]
    assert shrink(faults, lambda some: {faults[2], faults[7]} <= set(some)) == [faults[2], faults[7]]


def test_a_second_agent_is_refused_after_a_restart_of_the_control_plane() -> None:
    """It connects before the agent of the node does."""
    kinds = ("control-plane-killed", "second-agent")
    assert [found for seed in range(10) if (found := run_scenario(seed, kinds=kinds).violation)] == []


def test_the_command_counts_the_faults_that_took_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "0 of 2 seeds break a rule" in printed
    assert "took effect" in printed
    assert "half-open-connection" in printed


def test_the_command_prints_the_run_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "control plane A: starts (1)" in printed
    assert "seed 3: all rules hold" in printed


def test_an_idle_control_plane_that_lost_its_session_counts_as_active():
    """It takes the lock again with its next write, and has none when all jobs have ended."""
    assert run_scenario(2401).violation == ""
