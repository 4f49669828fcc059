"""The connection to a Ray cluster. Ray is an extra, imported when it is needed."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack, redirect_stdout
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


class RayConnection:
    """A connection to a Ray cluster, or to one that it starts on this machine (`local`). One that this process has already is
    used, and stays. While it is open, Ray's own messages go to standard error: standard output is for results.

    Raises:
        NoRay: There is no such cluster, or it has another version of Ray or Python.
    """

    def __init__(self, address: str, **options: Any) -> None:
        self.ray = import_ray()
        self._closing = ExitStack()
        if self.ray.is_initialized():
            return
        local = {"include_dashboard": False} if address == "local" else {}
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; otherwise connections warn
        with ExitStack() as undo:
            undo.enter_context(redirect_stdout(sys.stderr))
            try:
                self.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local, **options)
            except ConnectionError:
                mend = "run 'ray start --head', or give the address of a running one"
                raise NoRay(f"no Ray cluster at {address!r}: {mend}") from None
            except (RuntimeError, ValueError) as error:
                raise NoRay(f"cannot use the Ray cluster at {address!r}: {' '.join(str(error).split())}") from None
            undo.callback(self.ray.shutdown)
            self._closing = undo.pop_all()

    def close(self) -> None:
        """Disconnect, unless this process was connected before."""
        self._closing.close()
