"""Checkpoints and code of jobs that ended a while ago are removed, and no others."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from test_api import with_plane

from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control.code_store import CodeStore
from fairlead.runtime.protocol.code_archive import archive_digest, pack_code


def test_only_what_is_left_of_ended_jobs_goes(tmp_path):
    code = CodeStore(FolderFiles(tmp_path))
    digests = []
    for number in range(2):
        (tmp_path / f"source-{number}").mkdir()
        (tmp_path / f"source-{number}" / "main.py").write_text(f"print({number})")

    async def scene(plane, who):
        ann, checkpoints = who("ann"), Path(plane.backend.checkpoints)
        for number in range(2):
            archive = pack_code(tmp_path / f"source-{number}")
            digests.append((await ann.put(f"/v1/code/{archive_digest(archive)}", content=archive)).json()["digest"])
            await ann.post("/v1/jobs", json={"jobs": [{"run": "x", "code": digests[-1]}]})
            (checkpoints / str(number)).mkdir(parents=True)
            (checkpoints / str(number) / "model").write_text("weights")
        (checkpoints / "not-a-job").mkdir()
        await ann.delete("/v1/jobs/0")
        for digest in digests:
            os.utime(tmp_path / "code" / f"{digest}.zip", (0, 0))
        assert await asyncio.to_thread(plane.cleaner.clean) == []
        assert sorted(os.listdir(checkpoints)) == ["0", "1", "not-a-job"]
        assert await asyncio.to_thread(replace(plane.cleaner, keep_s=0.0).clean) == [0]
        assert sorted(os.listdir(checkpoints)) == ["1", "not-a-job"]

    with_plane(scene, checkpoints=str(tmp_path / "checkpoints"), code=code)
    assert [code.has(digest) for digest in digests] == [False, True]
