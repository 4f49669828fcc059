"""Markdown from values: tables, types as readers write them, and the meaning of a class's fields from its source."""

from __future__ import annotations

import ast
import inspect
import io
import math
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows. Bars inside cells are escaped, and lines are joined."""
    found = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows]
    if not found:
        return ""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in found)]) + "\n"


def code(text: object) -> str:
    """Code in a sentence; empty for an empty text."""
    text = str(text)
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else ""


def prose(text: str) -> str:
    """A docstring's words as Markdown: options are code, and no letter is markup by accident."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    text = re.sub(r"(?<!\w)'([^'`\n]+)'(?!\w)", r"`\1`", text)
    text = "".join(
        part if part.startswith("`") else re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", part)
        for part in re.split(r"(`[^`]*`)", text)
    )
    outside = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*\[\]$])", r"\\\1", part) for part in outside)


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    text = " ".join(text.split())
    if not text:
        return ""
    return (text[0].upper() + text[1:] if not text.startswith("`") else text) + ("" if text[-1] in ".!?:…" else ".")


def value_text(value: object) -> str:
    """A default as a file has it."""
    if value is None or value is inspect.Parameter.empty:
        return ""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, float):
        return "none" if math.isinf(value) else f"{value:g}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(value_text(one) for one in value) + "]"
    if isinstance(value, (dict, types.MappingProxyType)):
        return "{" + ", ".join(f"{name}: {value_text(one)}" for name, one in value.items()) + "}"
    return str(value)


_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    dict: "mapping",
    Any: "any value",
}


def type_text(hint: Any) -> str:
    """A type in the words of a reader."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return " or ".join(code(one) for one in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(one) for one in arguments if one is not type(None)))
    if (inspect.isclass(origin) and issubclass(origin, (list, tuple))) or origin is typing.get_origin(Sequence[int]):
        inner = [type_text(one) for one in arguments if one is not Ellipsis]
        each = inner[0] if len(set(inner)) == 1 else ", ".join(inner)
        return f"list of {each}" if each else "list"
    if inspect.isclass(origin):
        return f"mapping of {type_text(arguments[-1])}" if arguments else "mapping"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)).lower())


def meanings(found: type) -> dict[str, str]:
    """What a class's source says about each field: the string below it, or the comment behind it or above it."""
    said: dict[str, str] = {}
    for one in reversed(found.__mro__):
        if one is not object and one.__module__.startswith("fairlead"):
            said.update(_meanings_in(one))
    return said


def _meanings_in(found: type) -> dict[str, str]:
    try:
        text = textwrap.dedent(inspect.getsource(found))
    except (OSError, TypeError):
        return {}
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa", "# fmt"))
    }
    (made,) = ast.parse(text).body
    assert isinstance(made, ast.ClassDef)
    said: dict[str, str] = {}
    for node, below in zip(made.body, [*made.body[1:], None]):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name):
            name = target.id
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                said[name] = below.value.value
            elif node.end_lineno in comments:
                said[name] = comments[node.end_lineno]
    return said
