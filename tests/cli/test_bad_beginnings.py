"""`fairlead serve` and `up` that cannot begin: addresses, journals and schedulers that will not do. One line, exit code 2, and
nothing is left behind; least of all of a cluster that is up."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from fairlead.cli import main
from fairlead.journal.control_files import FolderFiles
from fairlead.journal.recovery import open_journal
from fairlead.runtime.bootstrap import create_tokens
from postgres_server import PostgresServer

CLUSTER = ("--cluster", "1xv100:1")
PORTS = ("--http", "127.0.0.1:0", "--agents", "127.0.0.1:0")

Fairlead: TypeAlias = Callable[..., str]


@pytest.fixture(params=["serve", "up"])
def fairlead(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The command in this process, in a folder of its own, to its one line of error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairlead.cli.cmd_cluster.log_to_stderr", lambda *_: None)

    def run(*words: object, code: int = 2) -> str:
        monkeypatch.setattr("sys.argv", ["fairlead", request.param, *CLUSTER, *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.run()
        (line,) = capsys.readouterr().err.splitlines()
        assert (ended.value.code, line[:17]) == (code, "fairlead: error: ")
        return line[17:]

    return run


def left() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@contextlib.contextmanager
def busy() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield f"127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize("option", ["--http", "--agents"])
@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:1e3", ":7420", "7420"],
)
def test_what_is_no_address_is_told(fairlead: Fairlead, option: str, address: str) -> None:
    said = fairlead(option, address)
    assert said == f"{option} '{address}': expected host:port, with a port from 0 to 65535"
    assert left() == []


@pytest.mark.parametrize(("option", "other"), [("--http", "--agents"), ("--agents", "--http")])
def test_an_address_that_is_in_use_is_told(fairlead: Fairlead, option: str, other: str) -> None:
    with busy() as address:
        said = fairlead(option, address, other, "127.0.0.1:0", "--root", "a/b")
    assert said.startswith(f"{option} '{address}'")
    assert "already in use" in said
    assert left() == []


def test_people_and_agents_do_not_share_an_address(fairlead: Fairlead) -> None:
    with busy() as address:
        pass
    assert "an address other than that of --http" in fairlead("--http", address, "--agents", address)
    assert left() == []


@pytest.mark.parametrize(
    ("journal", "said"),
    [
        ("nowhere/j.sqlite", "nowhere/j.sqlite: cannot write the journal: No such file or directory"),
        ("nowhere/j.jsonl", "nowhere/j.jsonl: cannot write the journal: No such file or directory"),
        ("folder.sqlite", "folder.sqlite: cannot use the journal: unable to open database file"),
        ("notes.sqlite", "notes.sqlite: damaged, or not a journal"),
        ("notes.jsonl", "notes.jsonl:1: not a journal"),
        ("journal.txt", "expected a journal: a file x.jsonl or x.sqlite"),
        ("postgresql://127.0.0.1:1/nobody", "cannot open the journal"),
        ("postgresql://[", "not the URL of a database"),
    ],
)
def test_a_journal_that_cannot_be_kept_is_told(fairlead: Fairlead, journal: str, said: str) -> None:
    Path("folder.sqlite").mkdir()
    for kind in ("sqlite", "jsonl"):
        Path(f"notes.{kind}").write_text("buy milk\nand bread")
    before = left()
    code = 5 if journal.startswith("postgresql://127.0.0.1:1") else 2
    assert said in fairlead(*PORTS, "--journal", journal, "--root", "a/b", code=code)
    assert left() == before
    assert Path("notes.jsonl").read_text() == "buy milk\nand bread"


def test_a_root_that_is_a_file_is_told(fairlead: Fairlead) -> None:
    Path("root").write_text("mine")
    assert fairlead(*PORTS, "--root", "root") == "root: File exists"
    assert left() == ["root"]


@pytest.mark.parametrize("place", ["agents", "agents/v100-0"])
@pytest.mark.parametrize("fairlead", ["up"], indirect=True)
def test_a_file_where_agents_have_their_folders_is_told_before_anything_starts(fairlead: Fairlead, place: str) -> None:
    """They would die of it one by one, and the plane wait for them."""
    path = Path("root") / place
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    before = left()
    assert fairlead(*PORTS, "--root", "root") == (
        f"--root '{path}': expected a writable folder, or a path that does not exist yet"
    )
    assert (left(), path.read_text()) == (before, "mine")


@pytest.mark.parametrize("fairlead", ["serve"], indirect=True)
@pytest.mark.parametrize("place", ["afile", "afile/below"])
def test_a_place_for_checkpoints_that_is_no_folder_is_told(fairlead: Fairlead, place: str) -> None:
    Path("afile").write_text("mine")
    said = fairlead(*PORTS, "--root", "root", "--checkpoints", place)
    assert said == f"--checkpoints '{place}': expected a writable folder"
    assert left() == ["afile"]


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ("policy: {name: las, x: 2026-01-01}", "x"),
        ("policy: las\nadmission: {name: user-job-quota, limits: {1: 3}}", "limits"),
        ("policy: {name: tiresias, thresholds: [.inf]}", "thresholds"),
        (f"policy: las\nadmission: {{name: accept-up-to, factor: {'9' * 400}}}", "factor"),
        ("policy: las\nname: '" + "x" * 70_000 + "'", "at most 65,536 bytes"),
        ("policy: {name: las, nonsense: 1}", "nonsense"),
    ],
)
def test_a_scheduler_that_cannot_be_kept_or_made_is_told(fairlead: Fairlead, scheduler: str, said: str) -> None:
    Path("scheduler.yaml").write_text(scheduler + "\n")
    assert said in fairlead("--config", "scheduler.yaml")
    assert left() == ["scheduler.yaml"]


def test_a_second_plane_on_a_journal_is_refused_and_the_first_keeps_all_that_is_its_own(fairlead: Fairlead) -> None:
    root = Path("root")
    root.mkdir()
    (root / "connection.json").write_text("of the first")
    journal = open_journal("root/journal.sqlite")
    before = left()
    said = fairlead(*PORTS, "--root", "root", code=4)
    assert said == "root/journal.sqlite: another process writes this journal; end it first"
    assert (left(), (root / "connection.json").read_text()) == (before, "of the first")
    journal.close()


def test_a_second_plane_on_a_file_of_lines_is_refused(fairlead: Fairlead) -> None:
    journal = open_journal("events.jsonl")
    said = fairlead(*PORTS, "--journal", "events.jsonl", code=4)
    assert said == "events.jsonl: another process writes this journal; end it first"
    assert left() == ["events.jsonl"]
    journal.close()


def test_a_second_plane_on_a_database_is_refused(
    fairlead: Fairlead, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.journal.postgres.LOCK_WAIT_MS", 10)
    url = postgres.database()
    journal = open_journal(url)
    assert fairlead(*PORTS, "--journal", url, code=4).endswith(": another process writes this journal; end it first")
    assert left() == []
    journal.close()


def test_a_token_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def full(draft: Path, path: Path) -> None:
        if path.suffix == ".token":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(draft, path)

    with monkeypatch.context() as disk:
        disk.setattr("os.replace", full)
        with pytest.raises(OSError, match="No space"):
            create_tokens(FolderFiles(tmp_path), tmp_path)
    assert list(tmp_path.glob("*.token")) == []
    create_tokens(FolderFiles(tmp_path), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.token") if path.read_text()) == ["admin.token", "agent.token"]
