"""What verbs for people show of a job and of a cluster, and what they say where something is not there."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest
from command import from_scratch
from rich.console import Console
from typer.testing import CliRunner

from fairlead.cli.job_table import done as done_of
from fairlead.cli.main import app
from fairlead.cli.top import looks, picture
from fairlead.runtime.people import RefusedRequest, Unreachable
from fairlead.runtime.tasks import TaskSpec

SEEN = {"second": 7.0, "policy": "las", "nodes": [], "jobs": [], "decisions": []}


def told(phase: str, done: float | None, steps: float = 10.0, known: bool = True) -> str:
    return done_of({"phase": phase, "steps_done": done, "steps": steps, "steps_known": known})


def test_how_much_is_done_is_a_part_where_the_whole_is_known():
    assert [told("running", 4), told("running", 1234, 1e6, False)] == ["40 %", "step 1,234"]
    assert [told("finished", 10), told("finished", None, 1e6, False)] == ["100 %", "100 %"]


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (["python", "-u", "code/train.py", "--lr", "1"], "train.py"),
        (["python", "-c", "print('a secret')"], "python"),
        ("sh -c 'echo $X' word", "sh"),
        (["python", "-m", "package.train"], "package.train"),
        (["hostname"], "hostname"),
    ],
)
def test_a_kind_is_the_script_and_never_the_text_of_a_program(run, kind):
    assert TaskSpec(run=run).job("a", "ann").kind == kind


def test_top_waits_for_a_control_plane_that_is_away_and_goes_on():
    answers = iter([{**SEEN, "second": 8.0}, Unreachable("nobody"), RefusedRequest(503, "later"), {**SEEN, "second": 9.0}])

    def look():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen = list(islice(looks(SEEN, look, lambda: None), 4))
    assert [(one["second"], away) for one, away in seen] == [(8.0, ""), (8.0, "nobody"), (8.0, "later"), (9.0, "")]
    screen = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    screen.print(picture(*seen[1][:1], 100, seen[1][1]))
    assert "waiting for the control plane: nobody" in screen.export_text()
    with pytest.raises(RefusedRequest):
        next(looks(SEEN, lambda: (_ for _ in ()).throw(RefusedRequest(401, "a token")), lambda: None))


def test_help_needs_no_extra(tmp_path: Path):
    absent = ("grpc", "fastapi", "uvicorn", "httpx", "starlette", "prometheus_client")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n")
    done = from_scratch("--help", cwd=tmp_path, paths=(tmp_path,))
    assert (done.returncode, "advise" in done.stdout) == (0, True), done.stderr


def test_a_lease_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "--cluster", "1xv100:1", "--term", "inf"])
    assert "field '--term' is inf: expected a number of seconds" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
