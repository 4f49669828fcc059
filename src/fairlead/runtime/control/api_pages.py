"""Two plain HTML pages of the HTTP server: `/`, where there is no console, and `/docs` from the OpenAPI document. They load
nothing from elsewhere, so they work without an internet connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse

from fairlead.core import VERSION

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code,pre{font-family:ui-monospace,monospace}table{border-collapse:collapse}h2{margin-top:2rem}"
    "td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}"
)


def add_pages(app: FastAPI, *, root: bool = True) -> None:
    """Add `/docs` and, if `root`, `/` to an application."""
    if root:
        app.add_api_route("/", lambda: HTMLResponse(_page("Fairlead", _ROOT)), include_in_schema=False)

    @app.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    async def docs() -> str:
        return _page("Fairlead HTTP API", "".join(_operations(app.openapi())))


_ROOT = f"""<p>Version {VERSION}. This is the control plane of a GPU cluster.</p>
<ul><li><a href="/docs">HTTP API</a></li><li><a href="/openapi.json">OpenAPI document</a></li>
<li><a href="/metrics">Metrics for Prometheus</a> (with a token for metrics, or of an admin)</li></ul>
<p>Use it from a terminal:</p>
<pre>export FAIRLEAD_URL=&lt;this address&gt; FAIRLEAD_TOKEN=&lt;your token&gt;
fairlead queue
fairlead submit -- python train.py</pre>"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>"
    )


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<p>Every request needs the header <code>Authorization: Bearer TOKEN</code>. "
    yield '<a href="/openapi.json">openapi.json</a> has all schemas.</p>'
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about.get('description', ''))}</p>"
            yield _table([(f"{one['name']} ({one['in']})", _type(one["schema"])) for one in about.get("parameters", ())])
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            yield _table(list(_fields(body, document)))


def _fields(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    for field, about in document.get("components", {}).get("schemas", {}).get(name, {}).get("properties", {}).items():
        yield f"{field} (body)", _type(about)


def _type(schema: Mapping[str, Any]) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    names = [str(one.get("type") or one.get("$ref", "").rpartition("/")[2]) for one in kinds]
    text = " or ".join(dict.fromkeys(filter(None, names)))
    return text + (f": {schema['description']}" if schema.get("description") else "")


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>" if cells else ""
