"""What a running cluster speaks: the HTTP API, metrics for Prometheus, events of the journal; and exit codes."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from typing import Any
from unittest.mock import MagicMock

from fairlead.console.web_console import Console
from fairlead.core import events as ev
from fairlead.core.errors import NOT_FOUND, REFUSED, UNREACHABLE
from fairlead.engine.fairness_ledger import FairnessLedger, LedgerRow
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.prometheus import ControlPlaneMetrics
from fairlead.runtime.control.request_guard import DESCRIPTIONS
from fairlead.testing import Harness, job
from generators.answers import ANSWERS, JOB, JOB_SOMETIMES
from generators.markdown import code, meanings, prose, sentence, table

SECTIONS = {"jobs": "Jobs", "code": "Code of jobs", "nodes": "Nodes", "scheduler": "Scheduler"}
"""Sections of the HTTP API by the first part of the path; other routes are in the last one."""


def http_api() -> str:
    """All routes of the OpenAPI document: parameters, body, answers."""
    plane, tokens = MagicMock(), MagicMock()
    document = create_app(plane, tokens, lookahead=MagicMock(), console=Console(plane, tokens)).openapi()
    sections: dict[str, list[tuple[str, str, dict[str, Any]]]] = {name: [] for name in (*SECTIONS.values(), "Cluster")}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            where = SECTIONS.get(path.removeprefix("/v1/").split("/")[0], "Cluster")
            sections[where].append((method.upper(), path, route))
    overview = table(
        ["request", "what it does"],
        (
            [f"[`{method} {path}`](#{_anchor(method, path)})", prose(_first(route))]
            for found in sections.values()
            for method, path, route in found
        ),
    )
    details = "".join(
        f"\n## {name}\n" + "".join(_route(document, *one) for one in found) for name, found in sections.items() if found
    )
    errors = table(["status", "meaning"], ([code(status), sentence(why)] for status, why in DESCRIPTIONS.items()))
    return f'{overview}\n## Errors\n\nThe body of every error is `{{"detail": "…"}}`, one sentence.\n\n{errors}{details}'


def _anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", f"{method} {path}".lower()).replace(" ", "-")


def _first(route: dict[str, Any]) -> str:
    text = " ".join(route.get("description", route.get("summary", "")).split())
    return re.split(r"(?<=[.:;]) ", text)[0].rstrip(":;.") + "."


def _route(document: dict[str, Any], method: str, path: str, route: dict[str, Any]) -> str:
    text = f"\n### {method} {path}\n\n{prose(' '.join(route.get('description', '').split()))}\n\n"
    rows = [
        [code(one["name"]), one["in"], _schema_type(document, one["schema"]), _schema_meaning(one["schema"], one)]
        for one in route.get("parameters", [])
        if not one.get("deprecated")
    ]
    if rows:
        text += table(["parameter", "in", "type", "meaning"], rows) + "\n"
    text += _body(document, route.get("requestBody")) + _answer(f"{method} {path}")
    answers = [
        [code(status), "Done." if status.startswith("2") else sentence(one.get("description", ""))]
        for status, one in route.get("responses", {}).items()
        if status.startswith("2") or int(status) not in (400, 422, 401, 408, 411, 413, 429, 503)
    ]
    return text + table(["status", "meaning"], answers)


def _answer(request: str) -> str:
    if request not in ANSWERS:
        return ""
    form, fields = ANSWERS[request]
    text = f"{form}\n\n{_answer_table(fields)}\n"
    return f"{text}These fields are absent if they do not apply:\n\n{_answer_table(JOB_SOMETIMES)}\n" if fields is JOB else text


def _answer_table(meanings_of: typing.Mapping[str, str]) -> str:
    return table(["field", "meaning"], ([code(name), sentence(prose(about))] for name, about in meanings_of.items()))


def _body(document: dict[str, Any], body: dict[str, Any] | None) -> str:
    if not body:
        return ""
    kind, content = next(iter(body["content"].items()))
    schema = _resolved(document, content.get("schema", {}))
    if "properties" not in schema:
        return f"The body is {code(kind)}.\n\n"
    rows = [
        [code(name), _schema_type(document, one), "yes" if name in schema.get("required", ()) else "", _schema_meaning(one)]
        for name, one in schema["properties"].items()
    ]
    return "The body is a JSON object:\n\n" + table(["field", "type", "required", "meaning"], rows) + "\n"


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
        return found
    return schema


_JSON = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "object": "object"}


def _schema_type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    if schema.get("$ref", "").endswith("/TaskSpec"):
        return "[task](task-file.md)"
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        return " or ".join(_schema_type(document, one) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_schema_type(document, schema.get('items', {}))}"
    if "enum" in schema:
        return " or ".join(code(one) for one in schema["enum"])
    return _JSON.get(schema.get("type", ""), "any value")


def _schema_meaning(schema: dict[str, Any], parameter: dict[str, Any] | None = None) -> str:
    text = (parameter or {}).get("description") or schema.get("description", "")
    default = schema.get("default")
    shown = "" if default in (None, "", False, []) else f" Default: `{default}`."
    low, high = schema.get("minimum"), schema.get("maximum")
    limits = f" From {low:,} to {high:,}." if low is not None and high is not None else ""
    return (sentence(prose(text)) + shown + limits).strip()


def prometheus() -> str:
    """All metrics with their labels, from a control plane's registry."""
    metrics = ControlPlaneMetrics()
    harness = Harness()
    harness.cluster("v100:1").submit(job("one"))
    harness.round()
    loop = MagicMock(state=harness.state, missed=0, backend=MagicMock(now=0.0))
    ledger = FairnessLedger(rows={("lab", "ann"): LedgerRow()})
    metrics.attach(loop, lambda: 0, MagicMock(), lambda: 0.0, lambda: ledger)
    labels = {f"{one._name}": one._labelnames for one in vars(metrics).values() if hasattr(one, "_labelnames")}
    rows = []
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found = labels.get(family.name) or tuple({label for sample in family.samples for label in sample.labels} - {"le"})
        rows.append([code(name), family.type, ", ".join(map(code, found)), sentence(family.documentation)])
    return table(["metric", "type", "labels", "meaning"], sorted(rows))


def events() -> str:
    """All events with their fields."""
    text = ""
    groups = {"Exogenous events": ev.EXOGENOUS, "Derived events": typing.get_args(ev.Derived)}
    for title, found in groups.items():
        rows = ([f"[`{one.__name__}`](#{_key(one).replace('_', '_')})", prose(_sentence_of(one))] for one in found)
        text += f"\n## {title}\n\n{table(['event', 'meaning'], rows)}"
        for one in found:
            text += f"\n### {_key(one)}\n\n{prose(' '.join((inspect.getdoc(one) or '').split()))}\n\n"
            text += table(["field", "type", "default", "meaning"], _fields(one))
    return text


def _key(event: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


def _sentence_of(event: type) -> str:
    doc = " ".join((inspect.getdoc(event) or "").split())
    return re.split(r"(?<=[.:;]) ", doc)[0].rstrip(";:.") + "."


_FIELD_TYPES = {"Ints": "list of whole numbers", "Floats": "list of numbers", "Cluster": "object", "Job": "object"}
_FIELD_TYPES |= {
    "RoundPlan": "object",
    "Memo": "object or null",
    "ObservedValues": "object",
    "float": "number",
    "int": "whole number",
}
_FIELD_TYPES |= {"str": "text", "bool": "true or false"}
COMMON = {
    "time": "Second of the event, from the start of the journal.",
    "number": "Number of the job.",
    "node": "Index of the node in the cluster.",
    "jobs": "Numbers of the jobs.",
}


def _fields(event: Any) -> list[list[str]]:
    said = {**COMMON, **meanings(event)}
    rows = []
    for field in dataclasses.fields(event):
        written = str(field.type)
        kind = _FIELD_TYPES.get(written) or (
            "object" if "Mapping" in written else _FIELD_TYPES.get(written.split(" |")[0], written)
        )
        default = "" if field.default in (dataclasses.MISSING, "", None) else code(str(field.default).lower())
        rows.append([code(field.name), kind, default, sentence(prose(said.get(field.name, "")))])
    return rows


EXIT_CODES = {
    0: "Done.",
    1: "The job or the check failed.",
    2: "Wrong usage or input.",
    NOT_FOUND: "Not found: no such job, node, file or name.",
    REFUSED: "Refused, or in conflict with the current state.",
    UNREACHABLE: "The control plane, a node or a journal does not answer.",
    130: "Interrupted with Ctrl-C.",
}


def exit_codes() -> str:
    """The exit codes of all commands."""
    return table(["code", "meaning"], ([code(number), text] for number, text in EXIT_CODES.items()))
