"""Code that users send with their jobs, and the removal of what ended jobs leave behind. Archives are stored by digest under
the control plane's root, and sent to agents in chunks. An archive that an agent would refuse is refused on arrival. Logs stay
with the agents."""

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
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES, ArchiveLimits, check_archive, is_digest
from fairlead.runtime.protocol.messages import CodeChunk
from fairlead.runtime.protocol.task_file import task_of

LIMITS = ArchiveLimits(packed_bytes=64 << 20, unpacked_bytes=512 << 20)  # of one archive; agents accept more

log = logging.getLogger(__name__)

WEEK_S = 7 * 86400.0
CLEAN_EVERY_S = 60.0
MIN_CODE_S = 3600.0  # how long code is kept after it was sent or looked up: its job may not be submitted yet


class CodeStore:
    """A folder of archives."""

    def __init__(self, root: Path, limits: ArchiveLimits = LIMITS) -> None:
        self._root, self.limits = root, limits

    def has(self, digest: str) -> bool:
        """Return whether an archive is there; it then stays for a while."""
        if not is_digest(digest) or not self._path(digest).is_file():
            return False
        os.utime(self._path(digest))
        return True

    def add(self, archive: bytes, digest: str) -> None:
        """Store an archive. Raises `ArchiveRefused`: it is too large, or not a safe archive with this digest."""
        check_archive(archive, digest, self.limits)
        if not self.has(digest):
            make_folder(self._root, 0o700)
            atomic_write(self._path(digest), archive, private=True)

    def chunk(self, digest: str, offset: int) -> CodeChunk:
        """Return part of an archive, or why it cannot be read."""
        try:
            if not is_digest(digest):  # it comes from outside, and names a file
                raise FileNotFoundError
            with self._path(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, offset))
                return CodeChunk(digest, offset, size, base64.b64encode(file.read(CHUNK_BYTES)).decode())
        except OSError:
            return CodeChunk(digest, problem=f"its code {digest[:12]} is not stored any more; submit it again")

    def remove_unused(self, used: Iterable[str], older_than: float) -> None:
        """Remove archives that no job uses and that were not looked up since a Unix time."""
        keep = set(used)
        for path in self._root.glob("*.zip"):
            if path.stem not in keep and path.stat().st_mtime < older_than:
                path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._root / f"{digest}.zip"


@dataclass(frozen=True)
class Cleaner:
    """Removes checkpoints of jobs that ended `keep_s` ago, and code that no job uses."""

    loop: Loop
    backend: ClusterBackend
    code: CodeStore | None
    keep_s: float = WEEK_S

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(min(CLEAN_EVERY_S, max(self.keep_s, 1.0)))
            try:
                await asyncio.to_thread(self.clean)
            except OSError as problem:
                log.warning("cannot clean up: %s", problem)

    def clean(self) -> list[int]:
        """Clean up once; return the jobs whose checkpoints are removed."""
        removed: list[int] = []
        folder = Path(self.backend.checkpoints) if self.backend.checkpoints else None
        if folder is not None and folder.is_dir():
            removed = self._long_ended([int(path.name) for path in folder.iterdir() if path.name.isdigit()])
            for number in removed:
                remove(folder / str(number))
        if self.code is not None:
            self.code.remove_unused(self._used_code(), time.time() - max(self.keep_s, MIN_CODE_S))
        return removed

    def _long_ended(self, numbers: list[int]) -> list[int]:
        with self.backend.lock:
            state, before = self.loop.state, self.backend.now - self.keep_s
            a = state.columns
            return [
                number
                for number in numbers
                if number in state.job_of
                and Phase(int(a["phase"][number])) in ENDED
                and a["ended_s"][number] <= before
                and self.backend.launches.latest(number) is None  # its processes may still write
            ]

    def _used_code(self) -> set[str]:
        with self.backend.lock:
            state = self.loop.state
            return {task_of(state.job_of[number]).code for number in (*state.live.tolist(), *state.queue.tolist())}
