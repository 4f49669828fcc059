"""`fairlead up` as a process, and waiting for what it comes to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from command import fairlead

from foundry import PATIENCE_S, Running, free_port, running

LOG = "up.log"


def until(reached: Callable[[], Any], folder: Path, patience_s: float = PATIENCE_S) -> Any:
    """What `reached` comes to say, once it says something."""
    deadline = time.monotonic() + patience_s
    while not (found := reached()):
        assert time.monotonic() < deadline, (folder / LOG).read_text()[-2000:]
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def cluster_up(folder: Path, *words: str, cluster: str = "2xv100:2,2xk80:2") -> Iterator[Running]:
    addresses = ("--http", f"127.0.0.1:{free_port()}", "--agents", f"127.0.0.1:{free_port()}")
    with running(folder, "up", "--round", 1, "--cluster", cluster, *words, *addresses, log=LOG) as process:
        until(lambda: fairlead("nodes", "--json", cwd=folder).returncode == 0, folder)
        yield process
