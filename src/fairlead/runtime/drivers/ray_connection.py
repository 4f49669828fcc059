"""The connection to a Ray cluster. Ray is an extra, imported when it is needed."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

from fairlead.core.errors import UNREACHABLE, FairleadError, NotInstalled, install


class NoRay(FairleadError):
    """There is no such Ray cluster, or it has another version of Ray or Python."""

    exit_code = UNREACHABLE


def import_ray() -> Any:
    """Return the package Ray. Raises NotInstalled without it."""
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise NotInstalled(f"this needs Ray, which is not installed: {install('ray')}") from None


def connect_ray(address: str, **options: Any) -> bool:
    """Connect to a Ray cluster, or start one on this machine (`local`). Returns False if this process was connected already.

    Raises:
        NoRay: There is no such cluster, or it has another version of Ray or Python.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    local = {"include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; otherwise each connection warns
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local, **options)
    except ConnectionError:
        raise NoRay(f"no Ray cluster at {address!r}: run 'ray start --head', or give the address of another one") from None
    except (RuntimeError, ValueError) as error:
        raise NoRay(f"cannot use the Ray cluster at {address!r}: {' '.join(str(error).split())}") from None
    return True
