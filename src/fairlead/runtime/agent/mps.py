"""NVIDIA's Multi-Process Service for accelerators that jobs share: one control daemon for each of them, started when two jobs
are to run on it and never before. Where `nvidia-cuda-mps-control` is absent, jobs that share an accelerator take turns on it,
which is what CUDA does by itself. A job that came first keeps running outside of the service until it is launched again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from fairlead.files import remove
from fairlead.runtime.agent.agent_errors import node_errors
from fairlead.runtime.agent.devices import Accelerator

CONTROL = "nvidia-cuda-mps-control"
_PATIENCE_S = 10.0


class MultiProcessService:
    def __init__(self, root: Path, path: str | None = None) -> None:
        self._root = root
        self._program = shutil.which(CONTROL, path=path)
        self._started: dict[int, dict[str, str]] = {}

    def variables(self, place: int, accelerator: Accelerator) -> dict[str, str]:
        """What a worker on a shared accelerator needs in its environment; starts the service at first.

        The service counts devices anew, so both sides name them by UUID. By number, a worker whose service has failed would
        find itself on another accelerator; where there is no UUID there is no service."""
        if self._program is None or not accelerator.identity:
            return {}
        if place not in self._started:
            pipes, logs = self._root / f"{place}-pipe", self._root / f"{place}-log"
            with node_errors(self._root):
                for folder in (pipes, logs):
                    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            variables = {
                "CUDA_VISIBLE_DEVICES": accelerator.identity,
                "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
                "CUDA_MPS_LOG_DIRECTORY": str(logs),
            }
            # A daemon that an earlier agent left says so and ends with an error: it serves as well.
            self._tell(["-d"], variables)
            self._started[place] = variables
        return self._started[place]

    def close(self) -> None:
        """Ends all of them, those included that an earlier agent on this root started."""
        if self._program is None:
            return
        for pipes in sorted(self._root.glob("*-pipe")):
            if self._tell([], {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}, b"quit\n"):
                remove(pipes)
        self._started.clear()

    def _tell(self, arguments: list[str], variables: dict[str, str], words: bytes = b"") -> bool:
        """Whether it was heard out."""
        assert self._program is not None
        with node_errors(self._program):
            try:
                subprocess.run(
                    [self._program, *arguments],
                    input=words,
                    env={"PATH": "/usr/bin:/bin", **variables},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_PATIENCE_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False
        return True
