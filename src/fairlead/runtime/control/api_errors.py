"""The errors of the HTTP API: their statuses, their body, and the sentence about an invalid request."""

from typing import Any

from pydantic import BaseModel

MAX_DETAIL = 1000


class ErrorResponse(BaseModel):
    """The body of every error."""

    detail: str


DESCRIPTIONS = {
    400: "the body cannot be read, or has two lengths",
    401: "no valid token",
    403: "not allowed with this role",
    404: "not found, or it belongs to another user",
    408: "the body did not arrive in time",
    409: "the current state does not allow it",
    411: "the header Content-Length is missing",
    413: "the body is too large, or above a quota",
    422: "an invalid request",
    429: "too many requests; try again after the seconds of the header Retry-After",
    503: "busy: it is unknown whether the request was accepted, or the state cannot be read; try again",
    507: "no room for more code",
}

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": why} for status, why in DESCRIPTIONS.items()
}


def validation_sentence(error: Any) -> str:
    """The field and what is wrong with it."""
    if error["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    message = str(error["msg"]).removeprefix("Value error, ")
    text = f"{where}: {message}" if where else message
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_DETAIL]
