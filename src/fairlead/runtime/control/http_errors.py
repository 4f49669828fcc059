"""Errors of the HTTP API: a status and one sentence, `{"detail": "…"}`. The sentence names the field. It never repeats what was
sent, which may be large or not printable."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import JSONResponse

from fairlead.runtime.control.cluster_backend import StateBusy

MAX_DETAIL = 1000


class ErrorResponse(BaseModel):
    """The body of every error."""

    detail: str


DESCRIPTIONS = {
    400: "a body that cannot be read at all",
    401: "no valid token",
    403: "not allowed with this role",
    404: "not there, or another user's",
    409: "not possible in the present state",
    411: "a body without its length",
    413: "a body that is too large",
    422: "an invalid request",
    503: "not known yet whether it was accepted, or the state cannot be read now",
}

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": why} for status, why in DESCRIPTIONS.items()
}


def install_error_handlers(app: FastAPI) -> None:
    """Report validation errors and a busy state like all other errors."""

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, problem: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _sentence(problem.errors()[0])}, 422)

    @app.exception_handler(StateBusy)
    async def later(request: Request, problem: StateBusy) -> JSONResponse:
        return JSONResponse({"detail": str(problem)}, 503)


def _sentence(error: Any) -> str:
    """The field and what is wrong with it."""
    if error["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    message = str(error["msg"]).removeprefix("Value error, ")
    text = f"{where}: {message}" if where else message
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_DETAIL]
