"""`fairlead logs`: which launch it begins at, and that it says so."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app


class Told:
    """A control plane that has these pieces of a job's log."""

    def __init__(self, *launches: int, phase: str = "finished") -> None:
        self.phase = phase
        self.pieces = [{"launch": launch, "text": f"of {launch}\n"} for launch in launches]

    def job(self, name: str) -> dict[str, object]:
        return {"number": 7}

    def find_jobs(self, words: list[str]) -> list[dict[str, object]]:
        return [{"number": 7, "name": "a", "phase": self.phase, "reason": {"text": "it failed"}}]

    def logs(self, *_: object, **__: object) -> list[dict[str, object]]:
        return self.pieces


@pytest.mark.parametrize(
    ("words", "launches", "said"),
    [
        (("-f",), (1, 1), ""),
        (("-f",), (3, 3, 4), "launch 3, the last; --launch N shows earlier ones\nlaunch 4\n"),
        ((), (3, 3), "launch 3, the last; --launch N shows earlier ones\n"),
        (("-f", "--launch", "1"), (1, 2), "launch 2\n"),
        (("--launch", "2"), (2,), ""),
    ],
)
def test_a_log_that_does_not_begin_at_the_first_launch_says_so(words, launches, said, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", lambda: Told(*launches))
    done = CliRunner().invoke(app, ["logs", *words, "a"])
    assert (done.stdout, done.stderr) == ("".join(f"of {launch}\n" for launch in launches), said)


@pytest.mark.parametrize(("phase", "code"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_following_a_log_ends_with_the_result_of_the_job(phase, code, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", lambda: Told(1, phase=phase))
    done = CliRunner().invoke(app, ["logs", "-f", "a"])
    assert (done.exit_code, done.stderr) == (code, f"a is {phase}: it failed\n" if code else "")
    assert CliRunner().invoke(app, ["logs", "a"]).exit_code == 0
