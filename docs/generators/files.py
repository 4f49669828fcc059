"""The files that users write: task files, scheduler and cluster files, traces; and what schedulers are made of."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from typing import Any

from pydantic.fields import FieldInfo

from fairlead.config.clusters import NODE_KEYS, TYPE_KEYS
from fairlead.config.registry import GROUPS, Registry, presets
from fairlead.config.schedulers import KEYS, SchedulerConfig
from fairlead.core.job import Job
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.runtime.protocol.task_parts import ContainerSpec, LeaseSpec
from fairlead.workloads.formats import BUILT_IN
from generators.markdown import code, meanings, prose, sentence, table, type_text, value_text

HEAD = ["key", "type", "default", "meaning"]


def task_file() -> str:
    """The fields of a task file, and those of its parts."""
    text = table(HEAD, _model_rows(TaskSpec))
    for name, part in (("container", ContainerSpec), ("lease", LeaseSpec)):
        text += f"\n## Keys of `{name}`\n\n{prose(_doc(part))}\n\n{table(HEAD, _model_rows(part))}"
    return text


def _model_rows(model: Any) -> list[list[str]]:
    hints, said = typing.get_type_hints(model), meanings(model)
    return [
        [code(name), _model_type(hints[name], field), _model_default(field), _model_meaning(field, said.get(name, ""))]
        for name, field in model.model_fields.items()
    ]


def _model_type(hint: Any, field: FieldInfo) -> str:
    if inspect.isclass(hint) and hasattr(hint, "model_fields"):
        return f"[mapping](#keys-of-{hint.__name__.removesuffix('Spec').lower()})"
    return type_text(hint) or type_text(field.annotation)


def _model_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    shown = value_text(field.get_default(call_default_factory=True))
    return code(shown) if shown not in ("", "[]", "{}", "1e+06") and "=" not in shown else ""


def _model_meaning(field: FieldInfo, said: str) -> str:
    least = greatest = above = below = None
    for rule in field.metadata:
        least, greatest = getattr(rule, "ge", least), getattr(rule, "le", greatest)
        above, below = getattr(rule, "gt", above), getattr(rule, "lt", below)
    limits = ""
    if least is not None and greatest is not None:
        limits = f" From {least:,g} to {greatest:,g}."
    elif above == 0:
        limits = " Above 0."
    inside = [getattr(one, "description", None) for one in _metadata(field.annotation)]
    described = field.description or next((one for one in inside if one), "")
    text = sentence(prose(said)) + " " + sentence(prose(described))
    return (text.strip() + limits).strip()


def _metadata(hint: Any) -> list[Any]:
    """What is annotated inside a union, as in `Annotated[float, …] | None`."""
    found = list(getattr(hint, "__metadata__", ()))
    return found + [one for each in typing.get_args(hint) if not isinstance(each, str) for one in _metadata(each)]


def scheduler_keys() -> str:
    """The keys of a scheduler file."""
    defaults = {field.name: getattr(SchedulerConfig(), field.name) for field in dataclasses.fields(SchedulerConfig)}
    defaults |= {"rounds": defaults["round_s"], "policy": None}
    shown = {name: value_text(defaults.get(name)) for name in KEYS}
    return table(["key", "default", "meaning"], ([code(name), code(shown[name]), prose(text)] for name, text in KEYS.items()))


def cluster_keys() -> str:
    """The keys of a node and of a type in a cluster file."""
    rows = {name: [[code(key), prose(text)] for key, text in keys.items()] for name, keys in _CLUSTER.items()}
    return "\n".join(f"**{name}**\n\n{table(['key', 'meaning'], each)}" for name, each in rows.items())


_CLUSTER = {"Keys of an entry of `nodes`": NODE_KEYS, "Keys of an entry of `types`": TYPE_KEYS}


def part_parameters() -> str:
    """For each kind of part: its parts, their parameters, defaults and meanings."""
    installed, text = Registry.installed(), ""
    for kind in GROUPS:
        if kind == "format":
            continue
        text += f"\n## {kind.capitalize()}: parameters\n\n"
        without = []
        for entry in installed.of(kind):
            if entry.origin != "fairlead":
                continue
            rows = _parameter_rows(entry.load())
            if rows:
                text += f"### {entry.name} ({kind})\n\n{prose(sentence(entry.summary))}\n\n"
                text += table(["parameter", "type", "default", "meaning"], rows) + "\n"
            else:
                without.append(code(entry.name))
        if without:
            text += f"Without parameters: {', '.join(without)}.\n"
    return text


SUPPLIED = ("table",)
"""Fields that Fairlead itself fills."""


def _parameter_rows(found: Any) -> list[list[str]]:
    if not dataclasses.is_dataclass(found):
        return []
    hints, said = typing.get_type_hints(found), meanings(typing.cast(type, found))
    rows = []
    for field in dataclasses.fields(found):
        if not field.init or field.name in SUPPLIED:
            continue
        made = field.default if field.default is not dataclasses.MISSING else ""
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
        shown = value_text(made)
        shown = shown if len(shown) < 60 and "(" not in shown else "…"
        rows.append([code(field.name), type_text(hints[field.name]), code(shown), sentence(prose(said.get(field.name, "")))])
    return rows


def preset_table() -> str:
    """The presets with what they are and where they come from, then the file of each."""
    found = list(presets().values())
    head = table(
        ["preset", "policy", "what it does", "source"],
        ([f"[`{one.name}`](#{_slug(one.name)})", code(_policy(one)), prose(one.about), prose(one.paper)] for one in found),
    )
    files = "".join(f"\n### {one.name}\n\n```yaml\n{one.text.strip()}\n```\n" for one in found)
    return f"{head}\n## The files\n{files}"


def _slug(name: str) -> str:
    return name.replace(".", "")


def _policy(preset: Any) -> str:
    return SchedulerConfig.preset(preset.name).policy.name


def trace_columns() -> str:
    """The columns of Fairlead's own traces: the fields of a job, and those that only the simulator reads."""
    from fairlead.workloads.formats import native_trace

    hints, said = typing.get_type_hints(Job), meanings(Job)
    rows = []
    for field in dataclasses.fields(Job):
        default = "required" if field.name == "submitted_s" else code(_column_default(field.default))
        rows.append([code(field.name), type_text(hints[field.name]), default, sentence(prose(said.get(field.name, "")))])
    for name, text in native_trace.EXTRA_COLUMNS.items():
        rows.append([code(name), "text" if name != native_trace.DURATION else "number", "", prose(text)])
    return table(["column", "type", "default", "meaning"], rows)


def _column_default(value: object) -> str:
    if value is dataclasses.MISSING or value in ("", ()) or (isinstance(value, float) and math.isinf(value)):
        return ""
    return value_text(value)


def trace_formats() -> str:
    """All formats that are recognized, with their columns."""
    rows = []
    for name, one in BUILT_IN.items():
        needed = ", ".join(code(each) for each in getattr(one, "needed", ()))
        rows.append([code(name), prose(one.summary), needed])
    return table(["format", "what the file looks like", "required columns"], rows)


def _doc(found: Any) -> str:
    return " ".join((inspect.getdoc(found) or "").split())
