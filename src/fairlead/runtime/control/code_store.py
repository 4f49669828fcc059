"""Code that users send with their jobs, and the removal of what ended jobs leave behind. Archives are stored by digest among
the control plane's files, and sent to agents in chunks. An archive that an agent would refuse is refused on arrival. Logs stay
with the agents; of those that have left, only the ends of logs are stored (`job_logs.py`)."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.job import ENDED, Phase
from fairlead.engine.loop import Loop
from fairlead.engine.transitions import MAX_NUMBER_GAP
from fairlead.files import remove
from fairlead.journal.control_files import CODE, ControlFiles
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.kept_logs import KeptLogs
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES, ArchiveLimits, check_archive, is_digest
from fairlead.runtime.protocol.messages import CodeChunk
from fairlead.runtime.protocol.task_file import task_of

LIMITS = ArchiveLimits(packed_bytes=64 << 20, unpacked_bytes=512 << 20)  # of one archive; agents accept more

log = logging.getLogger(__name__)

WEEK_S = 7 * 86400.0
CLEAN_EVERY_S = 60.0
SEEN_S = 30.0
MIN_CODE_S = 3600.0  # how long code is kept after it was sent or looked up: its job may not be submitted yet


class CodeQuota(NamedTuple):
    """Bytes of archives that one user and all users may store, and bytes that stay free on the disk, at most a tenth of it."""

    per_user: float = float(1 << 30)
    in_all: float = float(10 << 30)
    reserve: float = float(1 << 30)


class CodeQuotaExceeded(FairleadError):
    """An archive is above a quota; `status` is that of the HTTP answer."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


class CodeStore:
    """Archives among the files of a control plane. Each counts for the user who sent it first."""

    def __init__(self, files: ControlFiles, limits: ArchiveLimits = LIMITS, quota: CodeQuota | None = None) -> None:
        self._files, self.limits, self.quota = files, limits, quota or CodeQuota()
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}  # of a database, when it was found there: it is not asked for each job of an array

    @property
    def remote(self) -> bool:
        """Whether reading may take seconds."""
        return self._files.remote

    def has(self, digest: str) -> bool:
        """Return whether an archive is there; it then stays for a while."""
        now = time.monotonic()
        if now < self._seen.get(digest, -math.inf) + SEEN_S:
            return True
        found = is_digest(digest) and self._files.touch(_name(digest)) is not None
        if found and self.remote:
            self._seen[digest] = now
        return found

    def add(self, archive: bytes, digest: str, user: str = "") -> None:
        """Store an archive. Raises `ArchiveRefused`: it is too large, or not a safe archive with this digest. Raises
        `CodeQuotaExceeded`: there is no room for it."""
        check_archive(archive, digest, self.limits)
        with self._lock:
            if not self.has(digest):
                self._check_room(len(archive), user)
                self._files.write(_name(digest), archive, user)

    def _check_room(self, size: int, user: str) -> None:
        stored = self._files.listed(CODE).values()
        theirs = sum(one.size for one in stored if one.owner == user)
        if theirs + size > self.quota.per_user:
            have = f"the code of user {user!r} takes {_gib(theirs)} of at most {_gib(self.quota.per_user)} GiB"
            raise CodeQuotaExceeded(413, f"{have}: send fewer files, or wait until jobs that use other code have ended")
        if sum(one.size for one in stored) + size > self.quota.in_all:
            raise CodeQuotaExceeded(507, f"the code of all users takes {_gib(self.quota.in_all)} GiB: ask an operator for more")
        free, total = self._files.room()
        if free - size < min(self.quota.reserve, total / 10):
            raise CodeQuotaExceeded(507, "the disk of the control plane is almost full: ask an operator to free some space")

    def chunk(self, digest: str, offset: int) -> CodeChunk:
        """Return part of an archive, or why it cannot be read. Raises `JournalUnreachable`."""
        try:  # a digest comes from outside, and names a file
            found = self._files.part(_name(digest), max(0, offset), CHUNK_BYTES) if is_digest(digest) else None
        except OSError:
            found = None
        if found is None:
            return CodeChunk(digest, problem=f"its code {digest[:12]} is not stored any more; submit it again")
        return CodeChunk(digest, offset, found[1], base64.b64encode(found[0]).decode())

    def remove_unused(self, used: Iterable[str], older_than: float) -> None:
        """Remove archives that no job uses and that were not looked up since a Unix time."""
        keep = {_name(digest) for digest in used}
        with self._lock:
            for name, one in self._files.listed(CODE).items():
                if name not in keep and one.used_s < older_than:
                    self._seen.clear()
                    self._files.remove(name)


def _name(digest: str) -> str:
    return f"{CODE}/{digest}.zip"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.3g}"


def number_above(checkpoints: Path, known: int) -> int:
    """Return a number for new jobs, `known` or larger, above those of all folders of checkpoints: a new job must not resume
    from the checkpoint of a job that the journal lost, for instance because it is restored from an old backup."""
    try:
        numbers = [int(name) for name in os.listdir(checkpoints) if name.isdecimal() and len(name) < 15]
    except OSError:
        return known
    return max((number + 1 for number in numbers if known <= number < known + MAX_NUMBER_GAP), default=known)


@dataclass(frozen=True)
class Cleaner:
    """Removes checkpoints of jobs that ended `keep_s` ago, ends of logs that are as old, and code that no job uses."""

    loop: Loop
    backend: ClusterBackend
    code: CodeStore | None
    keep_s: float = WEEK_S
    logs: KeptLogs | None = None

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(min(CLEAN_EVERY_S, max(self.keep_s, 1.0)))
            try:
                await asyncio.to_thread(self.clean)
            except (OSError, JournalError) as problem:
                log.warning("cannot clean up: %s", problem)

    def clean(self) -> list[int]:
        """Clean up once; return the jobs whose checkpoints are removed."""
        removed: list[int] = []
        folder = Path(self.backend.checkpoints) if self.backend.checkpoints else None
        if folder is not None and folder.is_dir():
            removed = self._long_ended([int(path.name) for path in folder.iterdir() if path.name.isdigit()])
            for number in removed:
                remove(folder / str(number))
        self.remove_code(self.keep_s)
        if self.logs is not None:
            self.logs.clean(time.time() - self.keep_s)
        return removed

    def remove_code(self, older_s: float = 0.0) -> None:
        """Remove code that no job uses and that was not sent or looked up lately, which is within the last hour at least."""
        if self.code is not None:
            self.code.remove_unused(self._used_code(), time.time() - max(older_s, MIN_CODE_S))

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
