"""Code that people send along with their jobs: zip archives, kept by their digest under the control plane's root, handed to
agents piece by piece. What an agent would refuse to unpack is refused when it comes in."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from fairlead.runtime.agent.archives import Limits, check, is_digest
from fairlead.runtime.agent.files import make_folder, write_whole
from fairlead.runtime.messages import PIECE, CodePiece

LIMITS = Limits(packed_bytes=64 << 20, unpacked_bytes=512 << 20)
"""Of one archive; an agent takes more."""


class CodeStore:
    def __init__(self, root: Path, limits: Limits = LIMITS) -> None:
        self._root, self.limits = root, limits

    def has(self, digest: str) -> bool:
        """Whoever asks is about to need it, and finds it for a while."""
        if not is_digest(digest) or not self._path(digest).is_file():
            return False
        os.utime(self._path(digest))
        return True

    def take(self, archive: bytes, digest: str) -> None:
        """Kept when it returns; raises `ArchiveRefused` for what is not taken."""
        check(archive, digest, self.limits)
        if not self.has(digest):
            make_folder(self._root, 0o700)
            write_whole(self._path(digest), archive)

    def piece(self, digest: str, offset: int) -> CodePiece:
        try:
            if not is_digest(digest):  # it comes from outside, and names a file
                raise FileNotFoundError
            with self._path(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, offset))
                return CodePiece(digest, offset, size, base64.b64encode(file.read(PIECE)).decode())
        except OSError:
            return CodePiece(digest, problem=f"its code {digest[:12]} is not kept any more; submit it again")

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
