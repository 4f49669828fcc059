"""Code that people send along with their jobs: zip archives, kept by their digest under the control plane's root, handed to
agents piece by piece. What an agent would refuse to unpack is refused when it comes in."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.job import ENDED, Phase
from fairlead.engine.loop import Loop
from fairlead.files import atomic_write, make_folder, remove
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.protocol.code_archive import ArchiveLimits, check_archive, is_digest
from fairlead.runtime.protocol.messages import CHUNK_BYTES, CodeChunk
from fairlead.runtime.protocol.task_file import task_of

LIMITS = ArchiveLimits(packed_bytes=64 << 20, unpacked_bytes=512 << 20)
"""Of one archive; an agent takes more."""


class CodeStore:
    def __init__(self, root: Path, limits: ArchiveLimits = LIMITS) -> None:
        self._root, self.limits = root, limits

    def has(self, digest: str) -> bool:
        """Whoever asks is about to need it, and finds it for a while."""
        if not is_digest(digest) or not self._path(digest).is_file():
            return False
        os.utime(self._path(digest))
        return True

    def take(self, archive: bytes, digest: str) -> None:
        """Kept when it returns; raises `ArchiveRefused` for what is not taken."""
        check_archive(archive, digest, self.limits)
        if not self.has(digest):
            make_folder(self._root, 0o700)
            atomic_write(self._path(digest), archive, private=True)

    def piece(self, digest: str, offset: int) -> CodeChunk:
        try:
            if not is_digest(digest):  # it comes from outside, and names a file
                raise FileNotFoundError
            with self._path(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, offset))
                return CodeChunk(digest, offset, size, base64.b64encode(file.read(CHUNK_BYTES)).decode())
        except OSError:
            return CodeChunk(digest, problem=f"its code {digest[:12]} is not kept any more; submit it again")

    def sweep(self, wanted: Iterable[str], older_than: float) -> int:
        """Removes what nobody wants and nobody has sent since a moment of the calendar; how many."""
        keep = set(wanted)
        gone = 0
        for path in self._root.glob("*.zip"):
            if path.stem not in keep and path.stat().st_mtime < older_than:
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def _path(self, digest: str) -> Path:
        return self._root / f"{digest}.zip"


# What is left of jobs that ended a while ago: their checkpoints, and code that no job needs any more. The journal keeps all
# that there is to know about them; their logs are the agents' business.

log = logging.getLogger(__name__)

WEEK_S = 7 * 86400.0
LOOK_S = 60.0
LEAST_CODE_S = 3600.0
"""Code is kept so long after it was sent or asked for, or it could go before its job comes."""


@dataclass(frozen=True)
class Cleaner:
    loop: Loop
    backend: ClusterBackend
    code: CodeStore | None
    keep_s: float = WEEK_S

    async def watch(self) -> None:
        """Looks now and then; runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_S, max(self.keep_s, 1.0)))
            try:
                await asyncio.to_thread(self.clean)
            except OSError as problem:
                log.warning("cannot clean up: %s", problem)

    def clean(self) -> list[int]:
        """The jobs whose checkpoints are gone by this."""
        gone: list[int] = []
        folder = Path(self.backend.checkpoints) if self.backend.checkpoints else None
        if folder is not None and folder.is_dir():
            kept = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
            gone = self._long_ended(kept)
            for number in gone:
                remove(folder / str(number))
        if self.code is not None:
            self.code.sweep(self._wanted_code(), time.time() - max(self.keep_s, LEAST_CODE_S))
        return gone

    def _long_ended(self, numbers: list[int]) -> list[int]:
        with self.backend.lock:
            state, before = self.loop.state, self.backend.now - self.keep_s
            a = state.store.arrays
            return [
                number
                for number in numbers
                if number in state.job_of
                and Phase(int(a["phase"][number])) in ENDED
                and a["ended_s"][number] <= before
                and self.backend.launches.latest(number) is None  # it may be dying yet, and writing
            ]

    def _wanted_code(self) -> set[str]:
        with self.backend.lock:
            state = self.loop.state
            return {task_of(state.job_of[number]).code for number in (*state.live.tolist(), *state.queue.tolist())}
