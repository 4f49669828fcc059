"""`fairlead presets`, and `--preset` where a scheduler is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import fairlead
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.registry import presets
from fairlead.core.errors import FairleadError
from fairlead.journal.jsonl import JsonlJournal

FEW = ("--jobs", "12", "--cluster", "8xv100:4", "--json")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def refused(*arguments: str) -> str:
    """The error, told before anything was made."""
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, FairleadError)
    assert not list(Path().iterdir())
    return str(error)


def test_presets_are_listed_and_shown():
    table = said("presets")
    assert all(name in table for name in presets())
    listed = json.loads(said("presets", "--json"))["presets"]
    assert [one["name"] for one in listed] == list(presets())
    assert said("presets", "show", "tiresias") == presets()["tiresias"].text
    assert refused("presets", "show", "tiresius").startswith("unknown preset 'tiresius'; did you mean 'tiresias'")


def test_a_preset_is_simulated_with_other_parts():
    told = json.loads(
        said("simulate", "--preset", "tiresias", "--placement", "spread", "--round", "60", *FEW, "--events", "e.jsonl")
    )
    assert told["finished"] == 12
    scheduler = next(iter(JsonlJournal("e.jsonl"))).scheduler
    assert (scheduler["placement"], scheduler["rounds"], scheduler["policy"]["name"]) == ("spread", 60.0, "tiresias")
    other = json.loads(said("simulate", "--preset", "las-accept-1.2x", "--policy", "srtf", *FEW))
    assert other["scheduler"] == "srtf + accept-up-to(factor=1.2)"


def test_presets_are_compared_with_each_other():
    compared = json.loads(said("compare", "--preset", "tiresias", "--preset", "gavel", *FEW, "--processes", "1"))
    assert [arm["scheduler"] for arm in compared["results"]] == ["tiresias", "gavel"]


def test_what_does_not_go_together_is_told():
    assert "either --config FILE or --preset NAME" in refused("simulate", "--preset", "las", "--config", "mine.yaml")
    assert "either --config FILE or --preset" in refused("up", "--preset", "las", "--config", "mine.yaml")
    assert "either --config FILE or --placement" in refused("up", "--placement", "spread", "--config", "mine.yaml")
    assert "either --config FILE or --round" in refused("up", "--round", "5", "--config", "mine.yaml")


def test_fewer_gpus_than_one_real_node_has_are_refused_with_the_right_form():
    assert "as in 2xv100:2 for one node" in refused("up", "--cluster", "1xv100:2")
    assert "as in 4xk80:4 for one node" in refused("serve", "--cluster", "8xv100:4,2xk80:4")


def test_a_wrong_name_keeps_a_cluster_from_starting():
    assert refused("serve", "--cluster", "2xv100:2", "--preset", "lass").startswith("unknown preset 'lass'; did you mean 'las'")
    assert "unknown placement 'sprea'; did you mean 'spread'" in refused("up", "--preset", "las", "--placement", "sprea")


def test_who_lives_on_predictions_and_has_none_says_so():
    asked = ("--jobs", "4", "--cluster", "4xv100:4")
    lacking = "nothing is predicted for any job, so no job is co-located"
    assert lacking in fairlead("simulate", "--preset", "horus", *asked).stderr
    assert lacking in fairlead("compare", "--policies", "fifo", "--preset", "horus", *asked).stderr
    assert lacking in fairlead("simulate", "--preset", "horus", "--estimator", "monitored", *asked).stderr, "no agent sees any"


MINE = "name,submitted_s,steps,kind\na,0,6000,A3C\nb,0,6000,ResNet-50 (batch size 64)\n"
TIMED = "name,submitted_s,duration_s\na,0,600\nb,0,600\n"


@pytest.mark.parametrize(
    ("estimator", "trace", "told"),
    [
        ("predicted:usage={A3C: [25, 2], ResNet-50: [95, 6.4]}", MINE, ""),
        (
            "predicted:profiles=h200",
            MINE,
            "nothing is predicted for 'A3C', 'ResNet-50 (batch size 64)', so no job is co-located",
        ),
        (
            "predicted:usage={A3C: [25, 2]}",
            MINE,
            "nothing is predicted for 'ResNet-50 (batch size 64)', so some jobs are not co-located",
        ),
        (
            "predicted:usage={A3C: [25, 2], ResNet-50: [95, 6.4], Nosuch: [20, 2]}",
            MINE,
            "no job is of 'Nosuch', which 'usage' names",
        ),
        (
            "predicted:usage={A3C: [25, 2], ResNet-50: [95, 6.4]}:types=[v101]",
            MINE,
            "no GPU is of 'v101', which 'types' names, so no job is co-located",
        ),
        (
            "predicted:usage={A3C: [25, 2], ResNet-50: [95, 64]}",
            MINE,
            "'ResNet-50 (batch size 64)' would need more memory than the 16 GB of a GPU, so some jobs are not co-located",
        ),
        (
            "predicted",
            TIMED,
            "jobs with durations have no kind to predict for, so no job is co-located",
        ),
    ],
)
def test_who_has_no_company_since_predictions_are_of_others_is_told_in_one_line(tmp_path, estimator, trace, told):
    (tmp_path / "mine.csv").write_text(trace)
    asked = ("--preset", "horus", "--estimator", estimator, "--trace", tmp_path / "mine.csv", "--cluster", "4xv100:4")
    for command in (("simulate",), ("compare", "--policies", "fifo")):
        done = fairlead(*command, *asked)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if "docs/guides/gpu-sharing.md" in line]
        assert len(lines) == bool(told)
        assert all(f": {told}; see docs/guides/gpu-sharing.md" in line for line in lines)
