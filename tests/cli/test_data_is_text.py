"""Names, reasons, logs and errors are printed as they are: no markup, no emoji, no control characters for the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import fairlead
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from fairlead.cli import cmd_jobs, cmd_nodes
from fairlead.cli.cmd_wait import print_log
from fairlead.cli.main import app
from fairlead.cli.output import Out, fitted_table, note

ODD = "train.py:100: [bold]x[/bold] [red] \\[a]"
CONTROL = "a\x1b[31mb\x07\x9bc"


def printed(*objects: Any, **how: Any) -> str:
    screen = Out(file=io.StringIO(), force_terminal=True, color_system=None, width=200, height=50, **how)
    screen.print(*objects, soft_wrap=True)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_text_is_printed_as_it_is_alone_and_in_tables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.output.out", Out(width=400, height=50))
    table = Table(ODD, title=ODD, caption=ODD)
    table.add_row(ODD)
    table.add_row(Text(ODD))
    fitted = fitted_table(ODD, (ODD, ODD), [(ODD, ODD)], 1, ODD)
    assert printed(ODD) == f"{ODD}\n"
    assert printed(table).count(ODD) == 5
    assert printed(fitted).count(ODD) == 6


def test_control_characters_become_visible():
    table = Table("name")
    table.add_row(CONTROL)
    for text in (printed(CONTROL), printed(table), printed(Text(CONTROL))):
        assert "a␛[31mb" in text
        assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_a_note_is_printed_as_it_is(capfd: pytest.CaptureFixture[str]):
    note(ODD)
    note(CONTROL)
    assert capfd.readouterr().err.splitlines()[0] == ODD


def job(**more: Any) -> dict[str, Any]:
    reason = {"by": "policy", "code": "x", "facts": {}, "text": ODD}
    fields = {"number": 0, "name": ODD, "phase": "waiting", "user": ODD, "workers": 1, "mode": "", "steps": 1.0, "nodes": []}
    fields |= {"steps_known": True, "steps_done": 0.0, "rate": 0.0, "left_s": None, "accelerators": [], "accelerator_s": 0.0}
    return {**fields, "reason": reason, "last_failure": None, "starts": 0, "last_lines": [ODD], "array": None, **more}


def test_jobs_reasons_and_nodes_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch):
    node = {"name": ODD, "type": ODD, "accelerators": 4, "free": 4, "drained": False, "connected": True, "jobs": [ODD]}
    node |= {"up": True, "launch_error": ODD, "backoff_s": 0.0}
    plane = SimpleNamespace(
        find_jobs=lambda *_, **__: [job()], jobs=lambda *_, **__: [job()], job=lambda _: job(), nodes=lambda: [node]
    )
    for module in (cmd_jobs, cmd_nodes):
        monkeypatch.setattr(module, "control_plane", lambda: plane)
        monkeypatch.setattr(module, "out", Out(width=200, height=50))
    for words, times in ((["queue"], 2), (["why", "0"], 3), (["info", "0"], 4), (["nodes"], 4)):
        done = CliRunner().invoke(app, words)
        assert done.exception is None
        assert done.stdout.count(ODD) >= times, done.stdout


def test_jobs_of_a_trace_and_errors_are_printed_as_they_are(tmp_path: Path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s,workers\n[bold]:100:,0,60,9\n")
    run = ("simulate", "--policy", "fifo", "--trace", "jobs.csv", "--cluster", "1xv100:1")
    assert "refused: [bold]:100:: Too large" in fairlead(*run, cwd=tmp_path).stderr
    wrong = fairlead("simulate", "--policy", f"las:{ODD}", cwd=tmp_path)
    assert (wrong.returncode, ":100:" in wrong.stderr) == (2, True)
    (tmp_path / "x.csv").write_bytes(b"name,submitted_s,duration_s,workers\na,0,60,\x1b[31m\n")
    wrong = fairlead(*run[:3], "--trace", "x.csv", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "\x1b" not in wrong.stderr


@pytest.mark.parametrize(
    ("terminal", "options", "shown"),
    [
        (True, {}, "a\x1b[1;31mred\x1b[0m\t␛]0;title␇␛[2J�b\r\n"),
        (True, {"raw": True}, "a\x1b[1;31mred\x1b[0m\t\x1b]0;title\x07\x1b[2J\x9bb\r\n"),
        (False, {}, "a\x1b[1;31mred\x1b[0m\t\x1b]0;title\x07\x1b[2J\x9bb\r\n"),
    ],
)
def test_a_log_changes_no_terminal_but_its_colours_and_pipes_get_all_of_it(monkeypatch, terminal, options, shown):
    piece = {"launch": 1, "text": "a\x1b[1;31mred\x1b[0m\t\x1b]0;title\x07\x1b[2J\x9bb\r\n"}
    screen = io.StringIO(newline="")
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", screen)
    print_log(SimpleNamespace(logs=lambda number, **about: [piece]), "1", **options)
    assert screen.getvalue() == shown
