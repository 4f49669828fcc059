"""The control plane that commands speak to, and the jobs that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

NameArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Number of a job, or its name (the most recent job of that name).")
]


def control_plane() -> ControlPlaneClient:
    """Return the client of the control plane that the environment or this directory names."""
    from fairlead.runtime.http_client import ControlPlaneClient  # needs the extra `cluster`, and is slow to import

    return ControlPlaneClient.from_environment()
