"""Code that people send along, over HTTP: kept by digest, and refused where it is not what it claims to be."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_api import with_plane

from fairlead.core.errors import InputError
from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control.code_store import CodeQuota, CodeStore
from fairlead.runtime.protocol.code_archive import ArchiveLimits, archive_digest, pack_code


def zipped(**files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # the same bytes at any time
    return packed.getvalue()


BOMB = zipped(zeros="0" * 5_000_000)
ESCAPES = zipped(**{"../escaped": "x"})
TWICE = zipped(**{"a": "x", "a/b": "y"})
GOOD = zipped(**{"main.py": "print(1)"})


@pytest.mark.parametrize(
    ("archive", "status", "said"),
    [
        (GOOD, 201, "digest"),
        (BOMB, 422, "when unpacked"),
        (ESCAPES, 422, "not a path inside"),
        (TWICE, 422, "twice"),
        (b"no archive", 422, "not a zip"),
        (b"x" * 100_001, 413, "100,000"),
    ],
)
def test_an_archive_is_looked_at_before_it_is_kept(tmp_path, archive, status, said):
    async def scene(plane, who):
        ann, digest = who("ann"), archive_digest(archive)
        assert (await ann.get(f"/v1/code/{digest}")).status_code == 404
        answer = await ann.put(f"/v1/code/{digest}", content=archive)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert (await ann.get(f"/v1/code/{digest}")).status_code == (200 if status == 201 else 404)
        job = {"run": "true", "code": digest}
        assert (await ann.post("/v1/jobs", json={"jobs": [job]})).status_code == (201 if status == 201 else 422)
        wrong = await ann.put(f"/v1/code/{'0' * 64}", content=GOOD)
        assert (wrong.status_code, "SHA-256" in wrong.text) == (422, True)
        assert (await ann.put("/v1/code/..%2f..%2fetc", content=GOOD)).status_code in (404, 422)
        assert (await who("agent").put(f"/v1/code/{digest}", content=GOOD)).status_code == 401
        both = await ann.post("/v1/jobs", json={"jobs": [{**job, "directory": "/tmp"}]})
        assert (both.status_code, "not both" in both.text) == (422, True)

    limits = ArchiveLimits(packed_bytes=100_000, unpacked_bytes=1_000_000)
    with_plane(scene, code=CodeStore(FolderFiles(tmp_path), limits))
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name]


def test_others_cannot_read_a_jobs_log(tmp_path):
    async def scene(plane, who):
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": "mine", "run": "true"}]})
        piece = (await who("ann").get("/v1/jobs/mine/logs")).json()
        assert (piece["launch"], piece["text"], piece["over"]) == (0, "", False)
        assert (await who("bob").get("/v1/jobs/mine/logs")).status_code == 404
        assert (await who("root").get("/v1/jobs/mine/logs")).status_code == 200

    with_plane(scene)


def folder_with(place: Path, **files: str) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def test_the_same_files_give_the_same_archive(tmp_path):
    one = folder_with(
        tmp_path / "one", **{"a/b.py": "1", "c.py": "2", "__pycache__/c.pyc": "x", ".git/HEAD": "y", "bob.token": "z"}
    )
    other = folder_with(tmp_path / "other", **{"c.py": "2", "a/b.py": "1"})
    assert pack_code(one) == pack_code(other)
    assert sorted(zipfile.ZipFile(io.BytesIO(pack_code(one))).namelist()) == ["a/b.py", "c.py"]
    (other / "c.py").chmod(0o755)
    assert pack_code(one) != pack_code(other)
    zip_file = tmp_path / "z.zip"
    zip_file.write_bytes(GOOD)
    assert pack_code(zip_file) == GOOD


def test_private_keys_are_not_sent(tmp_path):
    keys = {
        f"{name}.pem": f"-----BEGIN {kind}PRIVATE KEY-----\nMII"
        for name, kind in (("a", ""), ("b", "RSA "), ("c", "ENCRYPTED "))
    }
    code = "marker = 'PRIVATE KEY-----'"
    folder = folder_with(tmp_path / "one", **keys, **{"train.py": code, "ca.pem": "-----BEGIN CERTIFICATE-----\nMII"})
    left_out: list[Path] = []
    assert sorted(zipfile.ZipFile(io.BytesIO(pack_code(folder, left_out.append))).namelist()) == ["ca.pem", "train.py"]
    assert [path.name for path in left_out] == ["a.pem", "b.pem", "c.pem"]


@pytest.mark.parametrize("place", ["absent", "text"])
def test_what_cannot_be_packed_is_refused(tmp_path, place):
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(InputError, match="zip file"):
        pack_code(tmp_path / place)


def test_code_that_no_job_uses_is_removed(tmp_path):
    store = CodeStore(FolderFiles(tmp_path))
    for archive in (GOOD, zipped(b="2")):
        store.add(archive, archive_digest(archive))
    store.remove_unused([archive_digest(GOOD)], older_than=0.0)
    assert len(list((tmp_path / "code").iterdir())) == 2
    store.remove_unused([archive_digest(GOOD)], older_than=1e12)
    assert len(list((tmp_path / "code").iterdir())) == 1
    assert store.has(archive_digest(GOOD))


def test_an_agent_is_told_when_code_is_gone(tmp_path):
    (tmp_path / "secret.zip").write_text("not for agents")
    for digest in ("0" * 64, "../secret", "secret"):
        assert "submit it again" in CodeStore(FolderFiles(tmp_path)).chunk(digest, 0).problem
        assert "submit it again" in CodeStore(FolderFiles(tmp_path)).chunk(digest, 0).problem


def test_each_user_and_all_together_have_a_quota_of_code(tmp_path):
    def archive(number: int) -> bytes:
        return zipped(**{"a.py": f"print({number:08})"})

    size = len(archive(0))

    async def scene(plane, who):
        async def send(user: str, number: int) -> tuple[int, str]:
            packed = archive(number)
            answer = await who(user).put(f"/v1/code/{archive_digest(packed)}", content=packed)
            return answer.status_code, answer.text

        assert [(await send("ann", number))[0] for number in range(2)] == [201, 201]
        status, text = await send("ann", 2)
        assert (status, "the code of user 'ann' takes" in text) == (413, True)
        assert (await send("ann", 1))[0] == 201, "it is stored already"
        assert (await send("bob", 1))[0] == 201, "of ann"
        assert [(await send("bob", number))[0] for number in (3, 4)] == [201, 507]
        for path in (tmp_path / "code").glob("*.zip"):
            os.utime(path, (0, 0))  # sent long ago, and no job uses it
        assert (await send("ann", 5))[0] == 201
        assert len(list((tmp_path / "code").iterdir())) == 2

    quota = CodeQuota(per_user=2.5 * size, in_all=3.5 * size, reserve=0)
    with_plane(scene, code=CodeStore(FolderFiles(tmp_path), quota=quota))


def test_code_leaves_room_on_the_disk_for_the_journal(tmp_path, monkeypatch):
    async def scene(plane, who):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=100 << 30, free=(1 << 30) + 10))
        answer = await who("ann").put(f"/v1/code/{archive_digest(GOOD)}", content=GOOD)
        assert (answer.status_code, "almost full" in answer.text) == (507, True)
        assert not (await who("ann").get(f"/v1/code/{archive_digest(GOOD)}")).is_success

    with_plane(scene, code=CodeStore(FolderFiles(tmp_path)))
