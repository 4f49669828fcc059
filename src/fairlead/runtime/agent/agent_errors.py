"""Errors of an agent that could not, or would not, carry out an order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.core.errors import REFUSED, FairleadError


class NodeError(FairleadError):
    """The node failed, such as by a full disk or a directory that cannot be written. Nothing was half done."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(f"{path}: {what}")


class DirectoryInUse(NodeError):
    """Another agent works on this directory; it may be about to end."""

    exit_code = REFUSED

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, "another agent works on this directory: stop it, or pass another --root")


class AgentRefused(FairleadError):
    """The control plane refuses this agent; connecting again without a change would not help."""

    exit_code = REFUSED


class OrderRefused(FairleadError):
    """An order that cannot be carried out as it is. Nothing was started."""


@contextmanager
def node_errors(path: Path | str) -> Iterator[None]:
    """Turn an `OSError` into a `NodeError` that names the path."""
    try:
        yield
    except OSError as error:
        raise NodeError(error.filename or path, error.strerror or str(error)) from error
