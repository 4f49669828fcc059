"""A file of measurements goes on with what it was begun with, and where nothing was measured yet it was not begun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError

NAME = "mlp-512@784:64"
ALONE = {"name": NAME, "family": "fully-connected", "steps_per_s": 8.0, "spread": 0.0}
FEATURES = {"name": NAME, "family": "fully-connected", "flops": 1.0}
PAIR = {"name": "a + b", "pair": ["a", "b"], "steps_per_s": [4.0, 9.0], "spread": 0.0}


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda device: {} if device == "cpu" else {"device": device})
    monkeypatch.setattr("fairlead.cli.cmd_profile._onnx", lambda: "1")
    measured = SimpleNamespace(measure_alone=lambda one, device: {**ALONE, "name": one.name})
    monkeypatch.setitem(sys.modules, "fairlead.profiling.profile_alone", measured)
    monkeypatch.setitem(sys.modules, "fairlead.profiling.onnx_export", SimpleNamespace())


def written(path: Path, *rows: dict[str, Any], **about: str) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"about": about}, *rows)))
    return path


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (("alone", "--device", "cpu"), FEATURES),
        (("alone", "--device", "cpu"), PAIR),
        (("alone", "--device", "cpu"), {**ALONE, "alone": NAME}),
        (("features",), ALONE),
        (("features",), PAIR),
        (("pairs", "--device", "cpu", "--of", NAME), ALONE),
    ],
)
def test_what_is_of_another_kind_is_not_mixed_in(tmp_path: Path, words: tuple[str, ...], row: dict[str, Any]):
    path = written(tmp_path / "kept.jsonl", row)
    before = path.read_bytes()
    done = CliRunner().invoke(app, ["profile", *words, "--out", str(path)])
    assert isinstance(done.exception, InputError)
    assert "pass another --out" in str(done.exception)
    assert path.read_bytes() == before


def test_where_nothing_was_measured_yet_another_device_may_begin(tmp_path: Path):
    path = written(tmp_path / "kept.jsonl", device="NVIDIA A100", sharing="mps")
    asked = ["profile", "alone", "--device", "cpu", "--only", NAME, "--out", str(path)]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"about": {}}, ALONE]
    refused = CliRunner().invoke(app, [*asked[:2], "--device", "another", *asked[4:]]).exception
    assert isinstance(refused, InputError)
    assert refused.field == "device"


def test_what_is_no_file_of_measurements_is_left_as_it_is(tmp_path: Path):
    path = tmp_path / "mine.txt"
    path.write_text("what I wrote\n")
    assert isinstance(CliRunner().invoke(app, ["profile", "features", "--out", str(path)]).exception, InputError)
    assert path.read_text() == "what I wrote\n"
