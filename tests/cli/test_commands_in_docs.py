"""Commands that stand in the documentation exist, with the options that stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from fairlead.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = [page for page in (ROOT / "docs").rglob("*.md") if "adr" not in page.parts]
PAGES = sorted([ROOT / "README.md", *DOCS, *(ROOT / "examples").rglob("*.md")])
COMMAND = typer.main.get_command(app)


def commands(page: Path) -> list[str]:
    """Lines of blocks that call fairlead, and what stands between back ticks in sentences and begins with it."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spoken = re.findall(r"`(fairlead [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for line in (*lines, *(" ".join(one.split()) for one in spoken)) if line.startswith("fairlead ")]


def problem(line: str) -> str:
    """What is wrong with a line, if anything: the command must be there, and have each option."""
    words = shlex.split(line.partition("  #")[0].partition(" && ")[0])[1:]
    command: Any = COMMAND
    context = command.make_context("fairlead", [], resilient_parsing=True)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper():
            return ""  # a placeholder
        if (command := command.get_command(context, name)) is None:
            return f"no command {name!r}"
    said = words[: words.index("--")] if "--" in words else words
    known = {option for parameter in command.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)}
    strange = [word for word in said if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"no option {', '.join(strange)}" if strange else ""


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_are_there_with_their_options(page: Path) -> None:
    wrong = {line: told for line in commands(page) if (told := problem(line))}
    assert not wrong
