"""Commands in the documentation exist, with their options: also in sentences, and in blocks that cannot run in a test."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import ROOT, blocks, commands, name_of, outside_blocks, pages

from fairlead.cli.main import app

PAGES = [page for page in pages() if "adr" not in page.parts and page.name != "changelog.md"]
COMMAND = typer.main.get_command(app)


def calls(page: Path) -> list[str]:
    """The calls of fairlead in a page's blocks, and between back ticks in its sentences."""
    text = page.read_text(encoding="utf-8")
    spoken = re.findall(r"`(fairlead [^`]+)`", outside_blocks(text))
    lines = [line for block in blocks(text) if block.language == "console" for line in commands(block.text)]
    parts = [part.strip() for line in lines for part in re.split(r"[|;&]{1,2}(?![^'\"]*['\"])", line.replace("\\\n", " "))]
    return [part for part in (*parts, *(" ".join(one.split()) for one in spoken)) if part.startswith("fairlead ")]


def problem(line: str) -> str:
    """What is wrong with a call, if anything: the command must exist and have each option."""
    words = shlex.split(re.sub(r"\s#.*| <<.*", "", line, flags=re.DOTALL))[1:]
    command: Any = COMMAND
    context = command.make_context("fairlead", [], resilient_parsing=True)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper() or name == "…":
            return ""  # a placeholder
        if (command := command.get_command(context, name)) is None:
            return f"no command {name!r}"
    said = words[: words.index("--")] if "--" in words else words
    known = {option for parameter in command.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)}
    strange = [word for word in said if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"no option {', '.join(strange)}" if strange else ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist_with_their_options(page: Path) -> None:
    wrong = {line: found for line in calls(page) if (found := problem(line))}
    assert not wrong


@pytest.mark.long
def test_the_first_table_of_the_readme_is_what_its_command_prints(tmp_path: Path) -> None:
    first, table, *_ = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    line = next(line for line in first.text.splitlines() if line.startswith("fairlead compare"))
    command = [sys.executable, "-m", "fairlead.cli.main", *shlex.split(line)[1:]]
    told = subprocess.run(
        command, env={**os.environ, "COLUMNS": "200"}, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    rows = [row.split() for row in table.text.splitlines() if row.rstrip()[-1:].isdigit()]
    assert len(rows) == 4
    for name, *cells in rows:
        printed = next(row.split() for row in told.splitlines() if re.match(rf" *{name} +\d+ ", row))
        rest = iter(printed)
        assert all(cell in rest for cell in cells), f"{cells} are not in {printed}: run docs/make_report_picture.py"
