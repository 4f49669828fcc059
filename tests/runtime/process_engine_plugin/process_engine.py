"""An engine of plain processes on this machine, which keeps everything in a folder, so that it outlives its drivers. Files in
the folder stand for what an engine's operator does: `away` (it does not answer), `cordoned`, `gone` (names of machines),
`broken` (no agent starts on these), `wrong` (it refuses everything), `twice` (it starts everything two times), `stuck` (nothing
leaves its queue)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.runtime.drivers.base import (
    Capabilities,
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)

_RUN = """
"$@" > "$0/log" 2>&1 &
echo $! > "$0/pid.new"
mv "$0/pid.new" "$0/pid"
wait $!
echo $? > "$0/code.new"
mv "$0/code.new" "$0/code"
"""


@dataclass
class ProcessEngine:
    """Machines m0, m1, … with `gpus` GPUs of a type each."""

    folder: Path
    machines: int = 2
    gpus: int = 2
    type: str = "v100"
    name = "processes"
    capabilities = Capabilities(poll_s=0.2, starts_per_s=100.0)

    def observe(self, journal: str) -> tuple[Sequence[Machine], Sequence[EngineTask]]:
        self._check()
        cordoned, gone = self._words("cordoned"), self._words("gone")
        machines = [
            Machine(name, self.type, self.gpus, MachineState.CORDONED if name in cordoned else MachineState.READY)
            for number in range(self.machines)
            if (name := f"m{number}") not in gone
        ]
        tasks = [task for place in sorted(self._tasks.glob("*")) if (task := self._task(place)) and task.key.journal == journal]
        return machines, tasks

    def watch(self, changed: Callable[[], None]) -> None:
        pass

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        self._check()
        if (self.folder / "wrong").exists():
            raise EngineRefused("processes: no such queue: ask your operator")
        for part in parts:
            place = self._tasks / part.key.label
            try:
                place.mkdir(parents=True)
            except FileExistsError:
                continue
            (place / "key").write_text(part.key.text)
            for number in range(2 if (self.folder / "twice").exists() else 1):
                copy = place / f"copy{number}" if number else place
                copy.mkdir(exist_ok=True)
                self._spawn(copy, part)
            (place / "spawned").touch()

    def _spawn(self, place: Path, part: LaunchPart) -> None:
        command = ["sh", "-c", _RUN, str(place), sys.executable, "-m", "fairlead.cli.main", *part.arguments]
        if part.key.machine in self._words("broken"):
            command = ["sh", "-c", _RUN, str(place), "false"]
        environment = {**os.environ, "FAIRLEAD_TOKEN": part.token, "FAIRLEAD_ALLOW_ROOT_JOBS": "1"}
        if (self.folder / "stuck").exists():
            return
        subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        self._check()
        place = self._tasks / key.label
        if place.exists() and not (place / "code").exists():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
                os.kill(int((place / "pid").read_text()), signal.SIGTERM)

    def log(self, key: LaunchKey, offset: int, limit: int) -> bytes | None:
        self._check()
        place = self._tasks / key.label / "log"
        return place.read_bytes()[offset : offset + limit] if place.exists() else None

    def forget(self, key: LaunchKey) -> None:
        self._check()

    def close(self) -> None:
        pass

    @property
    def _tasks(self) -> Path:
        return self.folder / "tasks"

    def _check(self) -> None:
        if (self.folder / "away").exists():
            raise EngineUnavailable("processes: connection refused")

    def _words(self, name: str) -> set[str]:
        place = self.folder / name
        return set(place.read_text().split()) if place.exists() else set()

    def _task(self, place: Path) -> EngineTask | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            key = LaunchKey.parse((place / "key").read_text())
            if key is None:
                return None
            if (place / "code").exists():
                return EngineTask(key, TaskState.OVER, int((place / "code").read_text()))
            return EngineTask(key, TaskState.RUNNING if (place / "pid").exists() else TaskState.WAITING)
        return None
