"""Input that somebody tried once and that broke something: a line that says what is wrong, and nothing worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.cli.options import override
from fairlead.config import SchedulerConfig
from fairlead.config.source import parse_yaml
from fairlead.core.errors import FairleadError, InputError
from fairlead.runtime.people import ControlPlane, Unreachable

BIG = "1" + 400 * "0"


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, FairleadError), (done.exception, done.output)
    return str(done.exception)


def test_a_number_beyond_all_numbers_is_no_number():
    with pytest.raises(InputError, match="seconds"):
        parse_yaml(f"rounds: {BIG}", "x").mapping()["rounds"].number("seconds")


def test_half_a_character_is_told_with_its_line():
    with pytest.raises(InputError, match="x:2"):
        parse_yaml('policy: las\nname: "\\ud800"', "x")


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("policies: [las]\nover: {load: [1]}\nseeds: 1000000000000", "seeds"),
        ("schedulers: [{policy: las}]\nseeds: 1000000000000", "at most 100,000 seeds"),
        (f"schedulers: [{{policy: las}}]\nseeds: [{'9' * 32}]", "none above"),
        (
            "schedulers: [{policy: las}]\nover:\n"
            + "".join(f"  {name}: [{', '.join(map(str, range(1, 61)))}]\n" for name in ("load", "rounds", "costs.restart_s")),
            "at most 100,000 runs, and these are 216,000",
        ),
    ],
)
def test_sweeps_that_would_never_end_are_not_begun(tmp_path: Path, sweep: str, said: str):
    (tmp_path / "sweep.yaml").write_text(sweep)
    assert said in refused("compare", "--sweep", str(tmp_path / "sweep.yaml"))


def test_too_many_seeds_are_refused():
    assert "seeds" in refused("compare", "--jobs", "5", "--seeds", "100000000000x")


@pytest.mark.parametrize(
    "admission", [f"user-job-quota:default={BIG}", f"job-resource-quota:limit={BIG}", "accept-up-to:factor=.inf"]
)
def test_limits_without_limit_are_refused(admission: str):
    assert "expected" in refused("simulate", "--policy", "las", "--jobs", "3", "--admission", admission)


def test_names_may_have_brackets_and_dollars(tmp_path: Path):
    (tmp_path / "odd.yaml").write_text('name: "[/red] $\\\\frac a$"\npolicy: las\n')
    asked = ["compare", "--config", "odd.yaml", "--policies", "fifo", "--jobs", "4", "--seeds", "2x", "--processes", "1"]
    done = CliRunner().invoke(app, [*asked[:2], str(tmp_path / "odd.yaml"), *asked[3:], "--png", str(tmp_path / "plots")])
    assert done.exit_code == 0, (done.exception, done.output)
    assert "frac a$" in done.stdout


@pytest.mark.parametrize("token", ["", "ü", "x\ny", "two words"])
def test_a_token_that_is_none_is_not_printed(token: str):
    with pytest.raises(Unreachable, match="expected a token") as told:
        ControlPlane("http://127.0.0.1:1", token).scheduler()
    assert not token or token not in str(told.value)


def test_a_variant_of_a_preset_does_not_go_by_its_name():
    varied = override(SchedulerConfig.preset("las"), 60.0, False, "accept-up-to:factor=1.2", "spread", False)
    assert varied.label == "las(placement=spread, admission=accept-up-to(factor=1.2), rounds=60)"
    assert override(SchedulerConfig.preset("las"), None, False, None, None, False).label == "las"
