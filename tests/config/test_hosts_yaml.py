"""A file that says how fast models are with their hosts' CPUs and memory; and a simulation that believes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.workload_files import read_hosts
from fairlead.core.errors import InputError
from fairlead.models.sensitivity import Curve, Sensitivity

HOSTS = """cpus:
  ResNet-50: 3@1|9@2.4
  LM: 1@1
memory_gb:
  ResNet-50: 20@0.8|60@1
"""
CLUSTER = "nodes:\n  - {count: 2, type: v100, accelerators: 8, cpus: 24, memory_gb: 500}\n"
TRACE = "name,submitted_s,steps,kind,workers\na,0,100000,ResNet-50 (batch size 64),1\nb,0,100000,LM (batch size 20),1\n"


def test_a_model_has_both_curves_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    assert read_hosts(tmp_path / "hosts.yaml") == {
        "ResNet-50": Sensitivity(Curve(((3.0, 1.0), (9.0, 2.4))), Curve(((20.0, 0.8), (60.0, 1.0)))),
        "LM": Sensitivity(Curve(((1.0, 1.0),))),
    }


@pytest.mark.parametrize("point", ["9", "9@nan", "nan@2", "9@inf", "9@1e300", "1e300@2"])
def test_a_curve_that_is_none_is_told_with_its_line(tmp_path: Path, point: str) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS.replace("9@2.4", point))
    with pytest.raises(InputError, match=rf"hosts.yaml:2: .*3@1\|{point}.*expected amounts and speeds"):
        read_hosts(tmp_path / "hosts.yaml")


@pytest.mark.parametrize("points", ["1e-300@1", "3@1e-300"])
def test_a_speed_that_no_time_is_enough_for_is_none(tmp_path: Path, points: str) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS.replace("3@1|9@2.4", points))
    with pytest.raises(InputError, match=r"from 1e-06 to 1e\+09"):
        read_hosts(tmp_path / "hosts.yaml")


def simulated(tmp_path: Path, *options: str) -> float:
    for name, text in (("hosts.yaml", HOSTS), ("cluster.yaml", CLUSTER), ("jobs.csv", TRACE)):
        (tmp_path / name).write_text(text)
    files = ("--trace", str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.yaml"))
    done = CliRunner().invoke(app, ["simulate", *files, "--policy", "fifo", "--json", *options])
    assert done.exit_code == 0, done.output
    return float(json.loads(done.stdout)["makespan_s"])


def test_a_simulation_believes_it_and_synergy_makes_use_of_it(tmp_path: Path) -> None:
    hosts = ("--hosts", str(tmp_path / "hosts.yaml"))
    plain, slowed = simulated(tmp_path), simulated(tmp_path, *hosts)
    assert slowed == pytest.approx(plain), "3 CPUs go with an accelerator: there the table's rate holds"
    tuned = simulated(tmp_path, *hosts, "--placement", "synergy:cpus={ResNet-50: 3@1|9@2.4, LM: 1@1}")
    assert tuned < slowed


def test_a_comparison_believes_it_too(tmp_path: Path) -> None:
    synergy = ("--placement", "synergy:cpus={ResNet-50: 3@1|9@2.4, LM: 1@1}")
    tuned = simulated(tmp_path, "--hosts", str(tmp_path / "hosts.yaml"), *synergy)
    files = [f"--{name}={tmp_path / file}" for name, file in (("trace", "jobs.csv"), ("cluster", "cluster.yaml"))]
    done = CliRunner().invoke(
        app, ["compare", *files, f"--hosts={tmp_path / 'hosts.yaml'}", "--policies", "fifo", "--json", *synergy]
    )
    assert done.exit_code == 0, done.output
    (case,) = json.loads(done.stdout)["cases"]
    assert case["makespan_s"] == tuned


@pytest.mark.parametrize("command", [("simulate", "--policy", "fifo"), ("compare", "--policies", "fifo")])
@pytest.mark.parametrize("from_trace", [True, False])
def test_a_model_that_nobody_has_is_told_with_the_near_ones(tmp_path: Path, command: tuple[str, ...], from_trace: bool) -> None:
    (tmp_path / "hosts.yaml").write_text("cpus: {ResNet-55: 3@1}\n")
    (tmp_path / "jobs.csv").write_text(TRACE)
    jobs = ("--trace", str(tmp_path / "jobs.csv")) if from_trace else ("--jobs", "3")
    done = CliRunner().invoke(app, [*command, *jobs, "--cluster", "8xv100:8", "--hosts", str(tmp_path / "hosts.yaml")])
    assert isinstance(done.exception, InputError)
    assert "field 'ResNet-55'" in str(done.exception)
    assert "did you mean 'ResNet-50'" in str(done.exception)
