"""What a long command cannot do is told before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.prediction import fit_predictor as training
from fairlead.prediction.measured_profiles import shipped_profiles

FAMILIES = sorted({one.family for one in shipped_profiles().alone.values()})


@pytest.fixture(autouse=True)
def nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "fit_predictor", lambda *_: pytest.fail("it has begun to learn"))


@pytest.mark.parametrize("left", [0, 1])
def test_a_predictor_is_learned_from_two_families_or_more(tmp_path: Path, left: int) -> None:
    words = [word for family in FAMILIES[left:] for word in ("--without", family)]
    refused = CliRunner().invoke(app, ["predict", "train", "--out", str(tmp_path / "one.json"), *words]).exception
    assert isinstance(refused, InputError)
    assert refused.field == "without"


def test_a_predictor_needs_a_place(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["predict", "train", "--out", str(tmp_path)]).exception
    assert isinstance(refused, InputError)
    assert "output " in str(refused)


def test_seeds_have_an_end(tmp_path: Path) -> None:
    words = ["reproduce", "gavel", "--only", "table3", "--out", str(tmp_path / "out"), "--seeds", "1000000000000"]
    assert CliRunner().invoke(app, words).exit_code == 2
