"""A scheduler file that a running control plane follows: read again on SIGHUP, and at a start that goes on with a journal."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.config.wall_time import read_scheduler, scheduler_of
from fairlead.core.errors import FairleadError

if TYPE_CHECKING:
    from fairlead.runtime.control.plane import Plane

START = "--config"
"""Why the file is read where nobody asked for it: then it is told of only if it says something else."""

log = logging.getLogger("fairlead.cluster")


def follow(plane: Plane, path: Path | None) -> None:
    """The file decides from now on, where it says something else than the journal; without one, SIGHUP does nothing."""

    def reload(why: str) -> None:
        if path is None:
            log.warning("nothing to reload", extra={"why": "there is no --config"})
            return
        try:
            wanted = read_scheduler(path)
            if scheduler_of(plane.scheduled) == wanted:
                if why != START:
                    log.info("scheduler unchanged", extra={"file": str(path)})
                return
            plane.switch(wanted.to_data(), why)
        except (FairleadError, OSError) as problem:
            log.error("scheduler refused, the old one stays", extra={"why": str(problem)})

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload, "SIGHUP")
    if path is not None:
        reload(START)
