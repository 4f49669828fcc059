"""How a request is refused: a status and one sentence, `{"detail": "…"}`, whatever was wrong with it. The sentence names the
field and never carries back what was sent, which may be large, or nothing that can be spelled."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import JSONResponse

from fairlead.runtime.control.cluster_backend import StateBusy

LONGEST = 1000


class Refusal(BaseModel):
    detail: str


WHEN = {
    400: "a body that cannot be read at all",
    401: "no valid token",
    403: "not with this role",
    404: "not there, or somebody else's",
    409: "not as things stand",
    411: "a body without its length",
    413: "a body that is too large",
    422: "something wrong with the request",
    503: "not known yet whether it was accepted, or not to be looked at now",
}

DOCUMENTED: dict[int | str, dict[str, Any]] = {status: {"model": Refusal, "description": why} for status, why in WHEN.items()}


def speak_plainly(app: FastAPI) -> None:
    """What FastAPI finds wrong is said as everything else is, and so is that nothing can be said now."""

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, problem: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": sentence(problem.errors()[0])}, 422)

    @app.exception_handler(StateBusy)
    async def later(request: Request, problem: StateBusy) -> JSONResponse:
        return JSONResponse({"detail": str(problem)}, 503)


def sentence(error: Any) -> str:
    """Field and mend of what was found first, for people."""
    if error["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    said = str(error["msg"]).removeprefix("Value error, ")
    text = f"{where}: {said}" if where else said
    return text.encode("utf-8", "backslashreplace").decode()[:LONGEST]
