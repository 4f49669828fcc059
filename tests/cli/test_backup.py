"""Backups of a cluster that runs, and what comes of them."""

from __future__ import annotations

import contextlib
import json
import tarfile
from pathlib import Path

import httpx
import pytest
from cluster_up import until
from command import fairlead

from fairlead.core.errors import FairleadError
from fairlead.core.events import JournalOpened
from fairlead.journal.backup import remove_old_backups, restore_backup, write_backup
from fairlead.journal.sqlite import SqliteJournal
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.testing.builders import cluster
from foundry import running

pytestmark = pytest.mark.long


def test_a_backup_of_a_running_cluster_is_restored_with_jobs_tokens_and_code(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print('hello')")
    up = ("up", "--cluster", "1xv100:1", "--http", "127.0.0.1:0", "--agents", "127.0.0.1:0", "--round", "0.5")
    with running(tmp_path, *up, log="up.log"):
        until(lambda: fairlead("queue", cwd=tmp_path).returncode == 0, tmp_path)
        sent = fairlead("submit", "--name", "first", "--code", "code", "--", "python", "main.py", cwd=tmp_path)
        assert sent.returncode == 0, sent.stderr
        token = fairlead("token", "add", "ann", cwd=tmp_path).stdout.strip()
        done = fairlead("backup", "copy.tar", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        assert record["events"] > 0
        assert 0.0 <= record["last_event_age_s"] < 3600.0
        assert (tmp_path / "copy.tar").stat().st_mode & 0o777 == 0o600
        text = fairlead("backup", "copy.tar", cwd=tmp_path).stdout
        assert "events, the last" in text
    restored = fairlead("restore", "copy.tar", "--root", "again", cwd=tmp_path)
    assert restored.returncode == 0, restored.stderr
    assert "restored" in restored.stdout
    refused = fairlead("restore", "copy.tar", "--root", "again", cwd=tmp_path)
    assert (refused.returncode, "nothing is overwritten" in refused.stderr) == (2, True)
    assert len(list((tmp_path / "again" / "code").glob("*.zip"))) == 1

    with running(tmp_path, *up, "--root", "again", log="up.log"):
        until((tmp_path / "again" / "connection.json").exists, tmp_path)
        url = json.loads((tmp_path / "again" / "connection.json").read_text())["url"]
        until(lambda: _answers(url), tmp_path)
        assert ControlPlaneClient(url, token).jobs() == []
        admin = ControlPlaneClient(url, (tmp_path / "again" / "admin.token").read_text())
        assert admin.job("first")["user"] == "admin"
        until(lambda: admin.job("first")["phase"] == "finished", tmp_path)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/healthz", trust_env=False).is_success
    return False


def _backup(folder: Path) -> Path:
    """Of a new journal."""
    with contextlib.closing(SqliteJournal(folder / "journal.sqlite")) as journal:
        journal.append(JournalOpened(0.0, cluster("v100:1"), {"policy": "las"}, journal="x"))
        journal.commit()
    (folder / "tokens.json").write_text("[]")
    write_backup(folder, "", folder / "copy.tar")
    return folder / "copy.tar"


def test_a_backup_whose_content_has_changed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    copy = _backup(tmp_path / "from")
    content = copy.read_bytes()
    copy.write_bytes(content.replace(b"las", b"lax"))
    with pytest.raises(FairleadError, match=r"journal.sqlite is damaged"):
        restore_backup(copy, tmp_path / "to")
    copy.write_bytes(content)
    assert restore_backup(copy, tmp_path / "to").files == 1


def test_a_backup_without_digests_is_restored(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    copy = _backup(tmp_path / "from")
    with tarfile.open(copy) as tar:
        assert all("FAIRLEAD.sha256" in member.pax_headers for member in tar)
    with tarfile.open(tmp_path / "old.tar", "w") as tar:
        tar.add(tmp_path / "from" / "journal.sqlite", "journal.sqlite")
    assert restore_backup(tmp_path / "old.tar", tmp_path / "to").events == 1


def test_a_backup_is_repeated_and_old_ones_are_removed(tmp_path: Path) -> None:
    for name in ("from", "copies"):
        (tmp_path / name).mkdir()
    _backup(tmp_path / "from")
    old = tmp_path / "copies" / "fairlead-2020-01-01T00-00-00Z.tar"
    old.touch()
    copies = lambda: sorted(path.name for path in (tmp_path / "copies").glob("fairlead-*.tar"))  # noqa: E731
    with running(tmp_path, "backup", "copies", "--root", "from", "--every", "1s", "--keep", "2", log="backup.log"):
        found = lambda: two if len(two := copies()) == 2 and old.name not in two else None  # noqa: E731
        (first, second), moved = until(found, tmp_path), tmp_path / "from" / "journal.sqlite"
        moved.rename(moved.with_suffix(".away"))
        until(lambda: "backup failed" in (tmp_path / "backup.log").read_text(), tmp_path)
        moved.with_suffix(".away").rename(moved)
        until(lambda: len(copies()) == 2 and first not in copies() and second not in copies(), tmp_path)
    assert restore_backup(tmp_path / "copies" / copies()[-1], tmp_path / "to").events == 1


def test_only_the_last_backups_are_kept(tmp_path: Path) -> None:
    for day in range(1, 6):
        (tmp_path / f"fairlead-2026-11-0{day}T00-00-00Z.tar").touch()
    (tmp_path / "notes.tar").touch()
    remove_old_backups(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fairlead-2026-11-04T00-00-00Z.tar",
        "fairlead-2026-11-05T00-00-00Z.tar",
        "notes.tar",
    ]


@pytest.mark.parametrize(
    ("journal", "said"), [("postgresql://h/d", "pg_dump"), ("x.jsonl", "can be copied"), ("", "was started before")]
)
def test_what_cannot_be_backed_up_is_refused_with_what_to_do(tmp_path: Path, journal: str, said: str) -> None:
    with pytest.raises(FairleadError, match=said):
        write_backup(tmp_path, journal, tmp_path / "copy.tar")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("no")
    with pytest.raises(FairleadError, match=r"cannot read the backup: it is not a tar file, or not all of it$"):
        restore_backup(tmp_path / "a.tar", tmp_path / "root")
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.add(tmp_path / "a.tar", "../outside")
    with pytest.raises(FairleadError, match=r"it has '\.\./outside' in it"):
        restore_backup(tmp_path / "b.tar", tmp_path / "root")
    assert not (tmp_path / "outside").exists()
    with tarfile.open(tmp_path / "c.tar", "w") as tar:
        for name in ("journal.sqlite", "tokens.json", f"code/{'a' * 64}.zip"):
            tar.add(tmp_path / "a.tar", name)
    with pytest.raises(FairleadError, match="not a journal"):
        restore_backup(tmp_path / "c.tar", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == [], "a part of a backup must not start as a control plane"
