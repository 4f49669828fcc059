"""The command line: every command with its usage, help, options and examples, in the panels of `fairlead --help`."""

from __future__ import annotations

import inspect
import re
import socket
from typing import Any

import typer

from fairlead.cli.command_classes import FEW_OPTIONS
from fairlead.cli.main import PANELS, app, commands
from generators.markdown import code, prose, sentence, table

_TYPES = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH", "file": "FILE"}


def cli_page() -> str:
    """A table of commands for each panel, then each command."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("fairlead", [], resilient_parsing=True)
    overview, details = "", ""
    for panel in PANELS:
        found = [(name, entry) for name, entry in commands().items() if entry.panel == panel]
        if not found:
            continue
        overview += f"\n**{panel}**\n\n" + table(
            ["command", "what it does"],
            (
                [f"[`fairlead {name}`](#fairlead-{name})", entry.summary or _summary(root, context, name)]
                for name, entry in found
            ),
        )
        details += f"\n## {panel}\n" + "".join(_command(root, context, name, f"fairlead {name}", 3) for name, _ in found)
    shared = _options(root, context)
    return f"{overview}\n## Options of `fairlead` itself\n{shared}\n{details}"


def _summary(group: Any, context: Any, name: str) -> str:
    return sentence(str(group.get_command(context, name).get_short_help_str(200)))


def _command(group: Any, context: Any, name: str, full: str, level: int) -> str:
    command = group.get_command(context, name)
    own = command.make_context(name, [], parent=context, resilient_parsing=True)
    text = f"\n{'#' * level} {full}\n\n"
    usage = " ".join(part for part in command.collect_usage_pieces(own))
    text += f"```text\n{full} {usage}\n```\n\n"
    text += _help(command.help or "") + _options(command, own)
    if hasattr(command, "list_commands"):
        names = command.list_commands(own)
        rows = ([f"[`{full} {one}`](#{full.replace(' ', '-')}-{one})", _summary(command, own, one)] for one in names)
        text += "\n" + table(["command", "what it does"], rows)
        text += "".join(_command(command, own, one, f"{full} {one}", level + 1) for one in names)
    return text


def _help(text: str) -> str:
    """The docstring: sentences, and indented lines as commands."""
    written, examples = "", list[str]()
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0].startswith("  "):
            examples += [line.strip() for line in lines]
            continue
        written += _examples(examples)
        examples = []
        joined = " ".join(" ".join(lines).split())
        written += "" if joined.rstrip(":").lower() in ("example", "examples") else f"{prose(joined)}\n\n"
    return written + _examples(examples)


def _examples(lines: list[str]) -> str:
    if not lines:
        return ""
    shown = "\n".join(
        f"$ {line}" if re.match(r"(fairlead|make|python|for|export|source|eval) ?", line) else line for line in lines
    )
    return f"```console\n{shown}\n```\n\n"


def _options(command: Any, context: Any) -> str:
    """Arguments, then options in their panels, as tables."""
    panels: dict[str, list[list[str]]] = {"Arguments": []}
    records = [(param, param.get_help_record(context)) for param in command.get_params(context)]
    given = [(param, record) for param, record in records if record is not None and param.name != "help"]
    for param, (name, text) in given:
        argument = param.param_type_name == "argument"
        panel = getattr(param, "rich_help_panel", None) if len(given) >= FEW_OPTIONS else None
        row = [_name(name, argument), _meaning(text)]
        panels.setdefault("Arguments" if argument else panel or "Options", []).append(row)
    for last in ("Output", "Options"):
        panels[last] = panels.pop(last, [])
    shown = [(panel, rows) for panel, rows in panels.items() if rows]
    return "".join(f"\n{table([panel.lower(), 'meaning'], rows)}" for panel, rows in shown)


def _name(text: str, argument: bool) -> str:
    """`-f, --follow` or `--round NUMBER`, each name as code."""
    found = re.fullmatch(r"(.*?)(?: <(.*)>| ([A-Z\[(].*))?", text)
    assert found is not None
    kind = (found[2] or "").removeprefix("list[").removesuffix("]").removesuffix(" range")
    value = "" if argument else _TYPES.get(kind, kind if "|" in kind else kind.upper()) or found[3] or ""
    names = re.split(r", | / ", found[1].upper() if argument and "<" in text else found[1])
    return ", ".join(code(f"{name} {value}".strip() if name == names[-1] else name) for name in names)


def _meaning(text: str) -> str:
    """The help of an option, with its default and its limits as sentences at its end."""
    notes = ""
    while (found := re.search(r"\s*\[([^\[\]]*)\]\s*$", text)) and re.match(r"default: |required|[\d.]*<?=?x", found[1]):
        text = text[: found.start()]
        for note in reversed(re.split(r"; (?=[\d.]*<?=?x)", found[1])):
            notes = f" {_note(note)}." + notes
    return (sentence(prose(text)) + notes).strip()


def _note(text: str) -> str:
    if not text.startswith("default: "):
        return "Required" if text == "required" else _limits(text)
    default = text.removeprefix("default: ")
    if default == socket.gethostname():
        default = "the name of this machine"
    elif re.fullmatch(r"\d+\.0", default):
        default = default.removesuffix(".0")
    return f"Default: {prose(default) if ' ' in default else code(default)}"


def _limits(text: str) -> str:
    bounds = re.fullmatch(r"(?:([\d.e+-]+)(<=?))?x(?:([<>]=?)([\d.e+-]+))?", text)
    if bounds is None or (bounds[1] and not bounds[4]):
        return f"Range: {code(text)}"
    if bounds[1]:
        return f"From {float(bounds[1]):g} to {float(bounds[4]):g}"
    return {">=": "At least", ">": "Above", "<=": "At most", "<": "Below"}[bounds[3]] + f" {float(bounds[4]):g}"
