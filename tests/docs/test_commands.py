"""Commands in the documentation exist, with their options: also in sentences, and in blocks that cannot run in a test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import blocks, commands, name_of, outside_blocks, pages

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
