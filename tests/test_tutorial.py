"""The tutorial does what it says: its files are written, its commands print what stands there, its Python runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.cli.output import out
from fairlead.testing import PolicyContract

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"


def blocks() -> list[tuple[str, str]]:
    """The language and the text of every block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def words(text: str) -> list[list[str]]:
    """Line by line, whatever the spaces between words."""
    return [line.split() for line in text.splitlines() if line.strip()]


def test_the_tutorial_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(out, "_width", 100)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # small runs; to start processes would take longer
    python: dict[str, object] = {"__name__": "tutorial"}
    ran = {"yaml": 0, "console": 0, "python": 0}
    for language, text in blocks():
        ran[language] += 1
        if language == "yaml":
            Path(text.partition("\n")[0].removeprefix("# ")).write_text(text)
        elif language == "python":
            exec(compile(text, str(TUTORIAL), "exec", dont_inherit=True), python)
        else:
            command, _, printed = text.partition("\n")
            done = CliRunner().invoke(app, command.removeprefix("$ fairlead ").split())
            assert done.exit_code == 0, (command, done.output, done.exception)
            assert words(done.stdout) == words(printed), command
    assert ran == {"yaml": 2, "console": 4, "python": 3}
    assert (tmp_path / "out" / "limits" / "report.html").is_file()
    (contract,) = (made for made in python.values() if isinstance(made, type) and PolicyContract in made.__bases__)
    for name in dir(contract):
        if name.startswith("test_"):
            getattr(contract(), name)()
