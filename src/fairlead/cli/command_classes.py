"""Classes of commands and groups: help in panels, options of earlier versions, completion of values. They import no command."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

FORMER_OPTIONS = {"--estimation": "--estimator", "--looks": "--simulations", "--term": "--lease"}
"""Options of earlier versions, and their present names. A command with the present option also reads the former one."""

LAST_PANELS = ("Output", "Options")
"""Panels that stand last in the help of a command; the others stand in the order of their first option."""


FEW_OPTIONS = 12
"""Up to this many options, the help of a command has no panels."""

_TYPES = re.compile(r"<(?:list\[)?(str|path|file|int|float)( range)?\]?>", re.IGNORECASE)

_RANGE = re.compile(r"([\d.]+)<=x<=([\d.]+)")


def _argument(param: Any) -> str:
    """Return an argument as the usage line has it: JOB, [JOB], JOB... or [JOB]..."""
    name = (param.metavar or param.name.upper()).strip("[].")
    return (name if param.required else f"[{name}]") + ("..." if param.nargs != 1 else "")


def _metavar(found: re.Match[str]) -> str:
    return {"str": "TEXT", "int": "N", "float": "NUMBER"}.get(found[1], found[1].upper())


@contextmanager
def usage_errors() -> Iterator[None]:
    """Let errors of usage be shown as all others are: in one line that begins with `fairlead: error:`."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message") and type(error).__name__ != "NoArgsIsHelpError":  # which shows the help
            text = f"fairlead: error: {error.format_message()}"
            vars(error)["show"] = lambda file=None: typer.echo(text, err=True)
        raise


class PanelCommand(TyperCommand):
    """A command whose help shows its options in panels, and its examples as they are written."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_help_text(self.help, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_parameters(self, ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_argument(param) for param in self.params if param.param_type_name == "argument")]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            near = getattr(error, "possibilities", ())  # None or similar names for an unknown option
            if near == ():
                raise
            wrong = f"No such option: {getattr(error, 'option_name', '')}"
            if self.name == "submit" and not (near and given[0].startswith("-")):
                line = "" if given[0].startswith("-") else f": fairlead submit -- {shlex.join(given)}"
                ctx.fail(f"{wrong}; put the job's own options after --{line}")
            names = " or ".join(name for name in near or () if name not in FORMER_OPTIONS)
            command = f"fairlead{ctx.command_path.removeprefix(ctx.find_root().info_name)}"
            ctx.fail(f"{wrong}; " + (f"did you mean {names}?" if names else f"'{command} --help' lists the options"))
            raise

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        for param in self.params:
            for former, present in FORMER_OPTIONS.items():
                if present in param.opts and not any(former in other.opts for other in self.params):
                    alias = copy(param)
                    alias.opts, alias.secondary_opts = [former], []
                    alias.add_to_parser(parser, ctx)
        return parser


class PanelGroup(TyperGroup):
    """A group of commands with the same form of help."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_help_text(self.help, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(1000)) for name, command in found if command and not command.hidden]
        write_panels([("Commands", rows)], formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        write_parameters(self, ctx, formatter)


def write_help_text(text: str | None, formatter: Any) -> None:
    """Write the text of a command's help. Indented lines are examples: they are not wrapped, and stand without blank lines."""
    blocks: list[tuple[bool, list[str]]] = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        lines = paragraph.splitlines()
        kept = bool(lines) and lines[0].startswith("  ")
        if kept and blocks and blocks[-1][0]:
            blocks[-1][1].extend(lines)
        elif lines:
            blocks.append((kept, lines))
    with formatter.indentation():
        for kept, lines in blocks:
            formatter.write_paragraph()
            if kept:
                formatter.write("".join(f"  {line}\n" for line in lines))
            else:
                formatter.write_text(" ".join(lines))


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments and options, one section per panel (`rich_help_panel`). Few options are one section."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    given = [(param, row) for param in command.get_params(ctx) if (row := param.get_help_record(ctx))]
    for param, (name, text) in given:
        default = "Arguments" if param.param_type_name == "argument" else "Options"
        panel = getattr(param, "rich_help_panel", None) if len(given) > FEW_OPTIONS else None
        name = _argument(param).strip("[].") if default == "Arguments" else _TYPES.sub(_metavar, name)
        panels.setdefault(panel or default, []).append((name, _RANGE.sub(r"\1 to \2", text.replace("x>=", "at least "))))
    for name in LAST_PANELS:
        panels[name] = panels.pop(name, [])
    write_panels(panels.items(), formatter)


def write_panels(panels: Iterable[tuple[str, Sequence[tuple[str, str]]]], formatter: Any) -> None:
    """Write sections of names and texts. All sections have the same column of texts; headings are bold on a terminal."""
    shown = [(title, rows) for title, rows in panels if rows]
    width = min(max((len(name) for _, rows in shown for name, _ in rows), default=0), 30)
    for title, rows in shown:
        with formatter.section(title if os.environ.get("NO_COLOR") else typer.style(title, bold=True)):
            formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows])


ANSWER_WITHIN_S = 1.0
"""How long a completion waits for the control plane. Without an answer there is no completion."""

COMPLETED = {"JOB": "jobs", "NODE": "nodes", "PART": "parts", "PRESET": "presets", "--preset": "presets"}
COMPLETED |= {"--policy": "policy", "--policies": "policy", "--format": "format", "--admission": "admission"}
COMPLETED |= {f"--{kind}": kind for kind in ("placement", "estimator", "mechanism", "termination")}
"""What is completed for an argument of this metavar, or for an option of this name (`completions_of`)."""


def complete_values(command: Any) -> None:
    """Give the arguments and options of a command the completion of their values."""
    for param in command.params:
        keys = [*param.opts, (param.metavar or "").strip("[].")]
        if what := next((COMPLETED[key] for key in keys if key in COMPLETED), None):
            param.shell_complete = partial(_complete, what)


def _complete(what: str, ctx: Any, incomplete: str) -> list[Any]:
    """Return the completions of a value; of a list, those of its last member. Without an answer there are none."""
    done, comma, last = incomplete.rpartition(",")
    found: list[Any] = []
    with suppress(Exception):  # an error here would disturb the user's prompt
        found = [
            SimpleNamespace(value=f"{done}{comma}{value}", type="plain", help=None)
            for value in completions_of(what)
            if value.startswith(last)
        ]
    return found


def completions_of(what: str) -> Iterable[str]:
    """Return the values of a kind: `jobs`, `nodes`, `presets`, `parts`, or the parts of one kind, such as `policy`."""
    if what in ("jobs", "nodes"):
        from fairlead.runtime.http_client import ControlPlaneClient  # needs the extra `cluster`

        plane = replace(ControlPlaneClient.from_environment(), timeout_s=ANSWER_WITHIN_S)
        return [str(found["name"]) for found in (plane.jobs() if what == "jobs" else plane.nodes())]
    from fairlead.config.registry import GROUPS, Registry, presets

    if what == "presets":
        return sorted(presets())
    entries = Registry.installed().entries
    return sorted({*GROUPS, *(name for names in entries.values() for name in names)} if what == "parts" else entries[what])
