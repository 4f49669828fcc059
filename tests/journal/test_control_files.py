"""Tokens, code and marks of a control plane, in a folder or in the database of its journal."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import JournalError, JournalUnreachable
from fairlead.journal.control_files import TOKENS, ControlFiles, FolderFiles
from fairlead.journal.postgres import SCHEMA, PostgresJournal
from fairlead.journal.postgres_files import IDLE_MS, PostgresFiles, PostgresTerms
from fairlead.journal.recovery import control_files
from fairlead.runtime.bootstrap import create_tokens
from fairlead.runtime.control import tokens as tokens_module
from fairlead.runtime.control.code_store import CodeStore
from fairlead.runtime.control.journal_term import JournalTerm
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.control.wall_clock import AliveMark, origin_of
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES, archive_digest, pack_code
from fairlead.runtime.standby import common_settings, hold_journal
from postgres_server import PostgresServer


@pytest.fixture
def journal(postgres: PostgresServer) -> str:
    url = postgres.database()
    PostgresJournal(url).close()
    return url


@pytest.fixture(params=["folder", "database"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> ControlFiles:
    return FolderFiles(tmp_path) if request.param == "folder" else PostgresFiles(request.getfixturevalue("journal"))


def test_files_are_written_read_in_parts_listed_and_removed(files: ControlFiles) -> None:
    assert (files.read("a"), files.part("a", 0, 9), files.version("a"), files.touch("a")) == (None, None, None, None)
    files.write("a", b"0123456789")
    files.write("code/x.zip", b"x" * 1000, "ann")
    assert files.part("a", 2, 3) == (b"234", 10)
    assert files.part("a", 20, 3) == (b"", 10)
    assert (list(files.listed()), [(name, one.size, one.owner) for name, one in files.listed("code").items()]) == (
        ["a"],
        [("code/x.zip", 1000, "ann")],
    )
    before = files.version("a")
    files.update("a", lambda content: (content or b"") + b"!")
    assert files.read("a") == b"0123456789!"
    assert files.version("a") != before
    assert abs((files.touch("a") or 0.0) - time.time()) < 3600
    files.remove("code/x.zip")
    assert files.listed("code") == {}


def test_updates_of_several_processes_are_all_kept(files: ControlFiles) -> None:
    def add() -> None:
        for _ in range(10):
            files.update("count", lambda content: str(int(content or b"0") + 1).encode())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert files.read("count") == b"40"


def test_code_marks_and_the_origin_are_the_same_everywhere(files: ControlFiles, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "main.py").write_text("print(1)")
    archive = pack_code(tmp_path / "source")
    store, digest = CodeStore(files), archive_digest(archive)
    store.add(archive, digest, "ann")
    assert store.has(digest)
    assert store.chunk(digest, 0).size == len(archive)
    assert store.chunk(digest, CHUNK_BYTES).data == ""
    store.remove_unused([], older_than=1e12)
    assert "submit it again" in store.chunk(digest, 0).problem

    AliveMark(files).mark({"lost": 30.0})
    assert 29.9 < AliveMark(files).silent_s()["lost"] < 90.0
    assert AliveMark(files).last_s(origin=1000.0) > 1e9
    first = origin_of(files)
    assert origin_of(files, first) == first


def test_a_journal_of_the_first_layout_gets_the_tables_for_files(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database()
    with psycopg.connect(url) as connection:
        for statement in ("CREATE SCHEMA fairlead", "SET search_path = fairlead", *SCHEMA):
            connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('tables', '1'), ('events', '2')")
    with pytest.raises(JournalError, match="start it first"):
        PostgresFiles(url)
    PostgresJournal(url, write=False).close()
    PostgresJournal(url).close()
    assert PostgresFiles(url).listed() == {}
    PostgresJournal(url, write=False).close()


def test_files_of_the_root_are_imported_once(journal: str, tmp_path: Path) -> None:
    folder = FolderFiles(tmp_path)
    token = Tokens(folder).issue(Role.USER, "ann")
    folder.write("code/x.zip", b"archive", "ann")
    (tmp_path / "admin.token").write_text("not for the database")
    found = control_files(tmp_path, journal)
    assert set(found.listed()) == {TOKENS}
    assert found.listed("code")["code/x.zip"].owner == "ann"
    bearer = Tokens(found).bearer(token)
    assert bearer is not None
    assert bearer.user == "ann"
    Tokens(folder).issue(Role.USER, "bob")
    assert [one.user for one in Tokens(control_files(tmp_path, journal)).listed()] == ["ann"]


def test_a_copy_into_the_database_that_is_cut_off_begins_again(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FolderFiles(tmp_path)
    Tokens(folder).issue(Role.USER, "ann")
    for name in ("one", "two"):
        folder.write(f"code/{name}.zip", name.encode(), "ann")
    written, write = list[str](), PostgresFiles.write

    def cut(self: PostgresFiles, name: str, content: bytes, owner: str = "") -> None:
        if len(written) == 2:
            raise JournalUnreachable("away")
        written.append(name)
        write(self, name, content, owner)

    with monkeypatch.context() as patched:
        patched.setattr(PostgresFiles, "write", cut)
        with pytest.raises(JournalUnreachable):
            control_files(tmp_path, journal)
    found = control_files(tmp_path, journal)
    assert sorted([*found.listed(), *found.listed("code")]) == ["code/one.zip", "code/two.zip", TOKENS]


def test_one_that_is_paused_while_it_confirms_does_not_keep_another_from_taking_over(journal: str) -> None:
    paused = PostgresFiles(journal)
    PostgresTerms(paused).begin({})
    connection = paused._idle.pop()
    timeout = "idle_in_transaction_session_timeout"
    assert connection.execute(f"SHOW {timeout}").fetchone() == (f"{IDLE_MS // 1000}s",)
    connection.execute(f"BEGIN; UPDATE control SET confirmed = 0; SET {timeout} = 100")  # at once: it begins to idle here
    former = PostgresTerms(PostgresFiles(journal)).begin({})
    assert former is not None
    connection.close()


def test_a_term_counts_from_before_the_write_that_begins_it(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = list[float](), PostgresTerms.begin

    def noted(self: PostgresTerms, settings: dict[str, Any]) -> Any:
        begun.append(time.monotonic())
        return begin(self, settings)

    monkeypatch.setattr(PostgresTerms, "begin", noted)
    monkeypatch.setattr(JournalTerm, "start", lambda term: None)
    settings = common_settings(lease_s=15.0, grace_s=35.0, journal_timeout_s=60.0, checkpoints=None, config=None)
    first = hold_journal(journal, tmp_path, settings)
    assert first.term is not None
    assert first.term._confirmed <= begun[0]
    first.journal.close()  # as by a crash
    second = hold_journal(journal, tmp_path, settings)
    assert second.term is not None
    assert 0.0 < second.term.former_renews_s <= 60.0
    second.close()
    last = PostgresTerms(PostgresFiles(journal)).current()
    assert last is not None
    assert last.confirmed_ago_s < 60.0, "not given back"


def test_only_the_first_control_plane_creates_tokens(journal: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    create_tokens(control_files(tmp_path / "first", journal), tmp_path / "first").close()
    tokens = create_tokens(control_files(tmp_path / "second", journal), tmp_path / "second")
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == ["admin.token", "agent.token"]
    assert list((tmp_path / "second").iterdir()) == []
    assert tokens.bearer((tmp_path / "first" / "admin.token").read_text()) is not None
    tokens.close()


def test_a_token_in_the_root_that_was_revoked_stays_so(journal: str, tmp_path: Path) -> None:
    create_tokens(control_files(tmp_path, journal), tmp_path).close()
    Tokens(control_files(tmp_path, journal)).revoke("agent")
    tokens = create_tokens(control_files(tmp_path, journal), tmp_path)
    assert tokens.bearer((tmp_path / "agent.token").read_text()) is None
    assert tokens.bearer((tmp_path / "admin.token").read_text()) is not None
    tokens.close()


def test_a_token_that_could_not_be_accepted_is_not_left_in_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: FolderFiles, name: str, change: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(FolderFiles, "update", full)
        with pytest.raises(OSError, match="No space"):
            create_tokens(FolderFiles(tmp_path), tmp_path)
    tokens = create_tokens(FolderFiles(tmp_path), tmp_path)
    assert tokens.bearer((tmp_path / "admin.token").read_text()) is not None


def test_a_late_reader_does_not_undo_what_another_thread_has_read_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FolderFiles(tmp_path)
    tokens = Tokens(files)
    Tokens(FolderFiles(tmp_path)).issue(Role.USER, "ann")
    issued, over, read = list[str](), threading.Event(), files.read

    def issue() -> None:
        issued.append(tokens.issue_credential("n1", "root"))
        over.set()

    def slow_read(name: str) -> bytes | None:
        found = read(name)
        if threading.current_thread() is reader:
            writer.start()
            over.wait(0.5)  # it comes before this one goes on, unless it has to wait for it
        return found

    monkeypatch.setattr(files, "read", slow_read)
    reader, writer = threading.Thread(target=tokens._reload), threading.Thread(target=issue)
    reader.start()
    reader.join()
    writer.join()
    tokens._followed = True  # no look before the answer
    assert tokens.bearer(issued[0]) is not None


def test_a_token_works_at_once_and_is_revoked_soon(journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = create_tokens(control_files(tmp_path, journal), tmp_path)
    added = CliRunner().invoke(app, ["token", "add", "ann", "--journal", journal])
    assert added.exit_code == 0, added.output
    token = added.output.strip()
    with monkeypatch.context() as patched:
        patched.setattr(tokens_module, "LOOK_EVERY_S", 60.0)  # as long it waits for the look that it asks for
        found = tokens.bearer(token)
    tokens._asked.set()  # by now the thread may wait as long for the next look
    assert found is not None
    assert found.user == "ann"
    assert CliRunner().invoke(app, ["token", "revoke", "ann", "--journal", journal]).exit_code == 0
    deadline = time.monotonic() + 60
    while tokens.bearer(token) is not None:
        assert time.monotonic() < deadline, "a revoked token is still valid"
        time.sleep(0.05)
    tokens.close()


def test_tokens_stay_valid_for_a_while_without_the_database(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PostgresFiles(journal)
    tokens = Tokens(files)
    token = tokens.issue(Role.USER, "ann")

    def unreachable(name: str) -> object:
        raise JournalUnreachable("away")

    monkeypatch.setattr(files, "version", unreachable)
    tokens.follow()
    assert tokens.bearer(token) is not None
    monkeypatch.setattr(tokens_module, "MAX_AGE_S", -1.0)
    assert tokens.bearer(token) is None
    tokens.close()


def test_a_change_of_tokens_does_not_wait_for_a_database_that_stands_still(
    journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "LOOK_EVERY_S", 60.0)  # the database is not taken for unreachable if this takes a while
    files, over = PostgresFiles(journal), threading.Event()
    tokens = Tokens(files)
    tokens.follow()
    monkeypatch.setattr(files, "update", lambda name, change: over.wait(60))
    monkeypatch.setattr(tokens_module, "CHANGE_WITHIN_S", 0.1)
    with pytest.raises(JournalUnreachable, match="not known if tokens were changed"):
        tokens.issue_credential("n1", "root")
    assert not over.is_set()
    over.set()
    tokens.close()


def test_a_slow_call_does_not_keep_others_waiting(journal: str) -> None:
    files, slow, over = PostgresFiles(journal), threading.Event(), threading.Event()

    def change(content: bytes | None) -> bytes:
        slow.set()
        assert over.wait(60)
        return b"1"

    thread = threading.Thread(target=files.update, args=("a", change))
    thread.start()
    assert slow.wait(60)
    files.write("b", b"2")
    over.set()
    thread.join()
    assert (files.read("a"), files.read("b")) == (b"1", b"2")


def test_only_the_last_term_can_be_confirmed(journal: str) -> None:
    one, other = PostgresTerms(PostgresFiles(journal)), PostgresTerms(PostgresFiles(journal))
    assert one.begin({"lease_s": 15.0}) is None
    assert one.confirm()
    before = other.begin({"lease_s": 20.0})
    assert before is not None
    assert 0.0 <= before.confirmed_ago_s < 60.0
    assert before.settings == {"lease_s": 15.0}
    assert (one.confirm(), other.confirm()) == (False, True)
    one.end()  # without effect
    other.end()
    ended = one.current()
    assert ended is not None
    assert ended.confirmed_ago_s == float("inf")


def test_a_database_is_asked_once_for_the_code_of_many_jobs(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    files, archive, asked = PostgresFiles(journal), pack_code(tmp_path), list[str]()
    store, digest = CodeStore(files), archive_digest(archive)
    assert not store.has(digest)
    store.add(archive, digest)
    touch = files.touch
    monkeypatch.setattr(files, "touch", lambda name: asked.append(name) or touch(name))
    assert [store.has(digest) for _ in range(100)] == [True] * 100
    assert len(asked) == 1
    store.remove_unused([], older_than=1e12)
    assert not store.has(digest)
