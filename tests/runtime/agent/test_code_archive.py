"""Code that comes with a job."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest
from agent_node import Node, order

from fairlead.runtime.protocol.code_archive import ArchiveLimits, ArchiveRefused, archive_digest, unpack_code


def packed(files: dict[str, str | bytes], modes: dict[str, int] | None = None) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (modes or {}).get(name, 0o100644) << 16
            archive.writestr(member, content)
    return memory.getvalue()


def test_an_archive_is_unpacked_once_and_read_only(tmp_path: Path) -> None:
    archive = packed({"a.py": "1", "pkg/b.py": "2", "run.sh": "3"}, {"run.sh": 0o100755})
    place = unpack_code(archive, archive_digest(archive), tmp_path / "code")
    assert (place / "pkg/b.py").read_text() == "2"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place, *place.rglob("*"))}
    assert modes == {archive_digest(archive): 0o555, "a.py": 0o444, "pkg": 0o555, "b.py": 0o444, "run.sh": 0o555}
    before = place.stat().st_ctime_ns
    assert unpack_code(archive, archive_digest(archive), tmp_path / "code") == place
    assert place.stat().st_ctime_ns == before
    assert os.listdir(tmp_path / "code") == [archive_digest(archive)]


@pytest.mark.parametrize(
    ("files", "modes", "why"),
    [
        ({"../up": ""}, {}, "not a path inside"),
        ({"/etc/passwd": ""}, {}, "not a path inside"),
        ({"a/../../b": ""}, {}, "not a path inside"),
        ({"a\\b": ""}, {}, "not a path inside"),
        ({"n" * 300: ""}, {}, "not a path inside"),
        ({"link": "/etc/passwd"}, {"link": stat.S_IFLNK | 0o777}, "is a link"),
        ({"pipe": ""}, {"pipe": stat.S_IFIFO | 0o644}, "is a link or a device"),
        ({"a": "", "a/b": ""}, {}, "twice"),
        ({"big": b"\0" * 2000}, {}, "more than 1,000 bytes"),
        ({"one": b"\0" * 600, "two": b"\0" * 600}, {}, "more than 1,000 bytes"),
        ({str(number): "" for number in range(11)}, {}, "at most 10"),
    ],
)
def test_what_an_archive_may_not_hold(tmp_path: Path, files: dict[str, str], modes: dict[str, int], why: str) -> None:
    archive = packed({"good.py": "1", **files}, modes)
    with pytest.raises(ArchiveRefused, match=why):
        unpack_code(
            archive, archive_digest(archive), tmp_path / "code", ArchiveLimits(packed_bytes=5000, unpacked_bytes=1000, files=10)
        )
    assert os.listdir(tmp_path / "code") == []
    assert not (tmp_path / "up").exists()


def test_a_wrong_digest_something_else_and_too_much_are_refused(tmp_path: Path) -> None:
    archive = packed({"a": "1"})
    damaged = archive.replace(b"a", b"\xff", 1)
    for sent, digest, limits, why in [
        (archive, "0" * 64, ArchiveLimits(), "its SHA-256 is"),
        (archive, "../" + archive_digest(archive), ArchiveLimits(), "its SHA-256 is"),
        (b"nonsense", archive_digest(b"nonsense"), ArchiveLimits(), "not a zip archive"),
        (damaged, archive_digest(damaged), ArchiveLimits(), "not a zip archive"),
        (archive[:-30], archive_digest(archive[:-30]), ArchiveLimits(), "not a zip archive"),
        (archive, archive_digest(archive), ArchiveLimits(packed_bytes=10), "at most 10"),
    ]:
        with pytest.raises(ArchiveRefused, match=why):
            unpack_code(sent, digest, tmp_path, limits)
    assert os.listdir(tmp_path) == []


def test_a_bomb_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    archive = packed({"bomb": b"\0" * 5_000_000})
    size, lie = (5_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    archive = archive.replace(size, lie)
    with pytest.raises(ArchiveRefused):
        unpack_code(archive, archive_digest(archive), tmp_path, ArchiveLimits(unpacked_bytes=1_000_000))
    assert os.listdir(tmp_path) == []


def test_a_job_runs_in_a_directory_of_its_own_with_its_code(node: Node) -> None:
    archive = packed(
        {"train.py": "import helper, os\nopen('out', 'w')\nprint(helper.WORD, os.listdir())", "helper.py": "WORD = 'hi'"}
    )
    digest = archive_digest(archive)
    assert not node.supervisor.has_code(digest)
    node.supervisor.take_code(archive, digest)
    assert node.supervisor.has_code(digest)
    launches = [node.launch(order(job=job, command=("python3", "-B", "train.py"), code=digest)) for job in (1, 2)]
    for launch in launches:
        assert node.ended(launch).code == 0, node.printed(launch)
        assert node.printed(launch).startswith("hi [")
    assert sorted(os.listdir(node.root / "code" / digest)) == ["helper.py", "train.py"]
