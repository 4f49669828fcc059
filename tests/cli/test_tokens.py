"""`fairlead token`: tokens with an end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app


def token(root: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["token", *words, "--root", str(root)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_token_can_have_an_end_and_a_number_of_uses(tmp_path: Path) -> None:
    token(tmp_path, "add", "ann")
    assert "expires" not in token(tmp_path, "list")
    token(tmp_path, "add", "rack-7", "--role", "agent", "--expires", "24h", "--uses", "40")
    [ann, rack] = json.loads(token(tmp_path, "list", "--json"))["tokens"]
    assert (ann["expires"], ann["uses_left"], rack["uses_left"]) == (None, None, 40)
    assert 86_000 < rack["expires"] - time.time() <= 86_400
    assert "uses left" in token(tmp_path, "list")


def test_a_cluster_is_found_in_a_folder_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "jobs" / "one"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert CliRunner().invoke(app, ["token", "add", "ann"]).exit_code != 0
    (tmp_path / ".fairlead").mkdir()
    assert CliRunner().invoke(app, ["token", "add", "ann"]).exit_code == 0
    assert "ann" in token(tmp_path / ".fairlead", "list")


@pytest.mark.parametrize("words", [("--expires", "soon"), ("--uses", "3"), ("--role", "agent", "--uses", "0")])
def test_an_end_that_is_none_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["token", "add", "ann", "--root", str(tmp_path), *words])
    assert done.exit_code != 0
    assert not (tmp_path / "tokens.json").exists()
