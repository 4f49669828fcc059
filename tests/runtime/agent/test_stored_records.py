"""Records that a job can write when it runs as the agent's user: nothing in them harms the agent."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_node import LEASED, RUNS_FOREVER, Node, order
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.runtime.agent.agent_errors import NodeError, OrderRefused
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.launch import LaunchRecord, read_ended
from fairlead.runtime.agent.settings import AgentSettings, User
from fairlead.runtime.agent.shim import Exit
from fairlead.runtime.agent.stored_records import MAX_RECORD_BYTES, read_exit
from fairlead.runtime.agent.worker_logs import read_log_files
from fairlead.runtime.protocol.messages import ReportBatch, decode_message, encode_message
from fairlead.runtime.protocol.orders import Ended, Extend, RequestRouting

EXIT = {"code": 0, "at_ns": 1, "why": "", "lost": 0, "permanent": False, "asked_ns": 0}

BAD_VALUES: list[dict[str, Any]] = [
    {"code": 2**63},
    {"code": 256},
    {"code": -65},
    {"code": True},
    {"code": 1.0},
    {"code": "0"},
    {"code": None},
    {"at_ns": -1},
    {"at_ns": 2**63},
    {"lost": -1},
    {"why": 3},
    {"why": "x" * 100_000},
    {"permanent": 1},
    {"asked_ns": 1e300},
    {"extra": 1},
]


def test_an_exit_record_has_no_fields_that_say_nothing(node: Node) -> None:
    """An agent of a former version refuses fields that it does not know; it may start shims of a later one."""
    launch = node.launch(order("raise SystemExit(3)"))
    assert node.ended(launch).code == 3
    assert json.loads((node.directory(launch) / "0/exit.json").read_text()).keys() == {"code", "at_ns"}


@pytest.mark.parametrize("wrong", BAD_VALUES)
def test_an_exit_record_with_a_wrong_value_counts_as_missing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "exit.json"
    path.write_text(json.dumps(EXIT).ljust(4096))
    assert read_exit(path) == Exit(0, 1)
    path.write_text(json.dumps(EXIT | wrong))
    assert read_exit(path) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"code": 0}', b"\xff", b"[" * 100_000, b'{"code": NaN, "at_ns": 1}', b"3"]
)
def test_an_exit_record_that_is_none_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "exit.json"
    path.write_bytes(content)
    assert read_exit(path) is None


def test_what_is_no_plain_file_of_some_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    os.mkfifo(path)
    assert read_exit(path) is None, "a pipe would block the agent"
    path.unlink()
    (tmp_path / "other").write_text(json.dumps(EXIT))
    path.symlink_to(tmp_path / "other")
    assert read_exit(path) is None
    path.unlink()
    path.mkdir()
    assert read_exit(path) is None
    path.rmdir()
    with open(path, "wb") as file:
        file.truncate(MAX_RECORD_BYTES + 1)
    assert read_exit(path) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)
NAMES = st.sampled_from([*EXIT, *LaunchRecord.__dataclass_fields__, *Ended.__dataclass_fields__, "deadline", "asked", "x"])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=30), st.dictionaries(NAMES, VALUES, max_size=12).map(lambda one: json.dumps(one).encode())))
def test_no_content_of_a_record_raises_and_what_is_read_can_be_sent(tmp_path_factory, content: bytes) -> None:
    directory = tmp_path_factory.getbasetemp() / "1" / "1"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("exit.json", "record.json", "ended.json"):
        (directory / name).write_bytes(content)
    exit = read_exit(directory / "exit.json")
    LaunchRecord.read(directory)
    ended = read_ended(directory)
    ends = [ended] if ended else []
    if exit is not None:
        ends.append(Ended(1, 1, exit.code, False, 0, 0, exit.why))
    decode_message(encode_message(ReportBatch(1, tuple(ends))))


FORGES = """
import json, os, signal, sys
from pathlib import Path
here = Path(os.environ["FAIRLEAD_LEASE"]).parent
(here / "exit.json").write_text({forged!r})
if {kills}:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
os.rename(here / "exit.json", here / "exit.json.new")
sys.exit(3)
"""


@pytest.mark.parametrize("forged", [json.dumps(EXIT | wrong) for wrong in ({}, {"code": 2**63}, {"extra": 1})] + ["{"])
@pytest.mark.parametrize("kills", [True, False])
def test_a_job_that_forges_its_exit_ends_as_its_shim_does(node: Node, forged: str, kills: bool) -> None:
    launch = node.launch(order(FORGES.format(forged=forged, kills=kills)))
    end = node.ended(launch)
    assert (end.code, end.yielded) == (-9 if kills else 3, False)
    assert not node.workers(launch)


def damaged(text: str, **values: Any) -> str:
    return json.dumps(json.loads(text) | values)


def shims_of(node: Node) -> list[int]:
    return [worker.record.pid for run in node.supervisor.running() for worker in run.workers]


def reap(shims: list[int]) -> None:
    """They are children of the test; those of a real agent that has ended belong to the system."""
    for shim in shims:
        os.waitpid(shim, 0)


BAD_RECORDS: list[Callable[[str], str]] = [
    lambda text: "",
    lambda text: "{}",
    lambda text: text[: len(text) // 2],
    lambda text: damaged(text, workers=[]),
    lambda text: damaged(text, extra=1),
    lambda text: damaged(text, job=2),
    lambda text: damaged(text, grace_s=1e999),
    lambda text: damaged(text, workers=[{"rank": 0, "accelerator": 0, "pid": 2**63, "started": 1, "page": "/", "cgroup": ""}]),
]


@pytest.mark.parametrize("damage", BAD_RECORDS)
def test_a_launch_whose_record_is_damaged_ends_with_the_next_agent(node: Node, damage: Callable[[str], str]) -> None:
    launch = node.starts(order(LEASED, ranks=2))
    path = node.directory(launch) / "record.json"
    shims = shims_of(node)
    path.write_text(damage(path.read_text()))
    node.restarts()
    end = node.ended(launch)
    reap(shims)
    assert (end.code, end.yielded) == (-9, False)
    assert not node.workers(launch)
    again = node.launch(replace(order("print('up')"), generation=2))
    assert node.ended(again).code == 0


def test_a_launch_whose_record_is_gone_ends_with_the_next_agent(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    shims = shims_of(node)
    (node.directory(launch) / "record.json").unlink()
    node.restarts()
    assert node.ended(launch).code == -9
    reap(shims)
    assert not node.workers(launch)


@pytest.mark.parametrize("with_record", [True, False])
def test_a_job_that_says_that_it_has_ended_while_it_runs_is_still_supervised(node: Node, with_record: bool) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    shims = shims_of(node)
    if not with_record:
        (node.directory(launch) / "record.json").write_text("{")
    (node.directory(launch) / "ended.json").write_text(
        json.dumps({"job": 1, "generation": 1, "code": 0, "yielded": False, "steps": 0, "saved": 0})
    )
    (node.directory(launch) / "settled").touch()
    node.restarts()
    assert [run.key for run in node.supervisor.running()] == [launch.key]
    node.kill(launch)
    assert node.ended(launch).code == -9
    assert not node.workers(launch)
    if not with_record:
        reap(shims)


def test_a_pipe_in_the_place_of_the_reports_does_not_stop_the_next_agent(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    reports = node.directory(launch) / "0" / "reports"
    reports.unlink()
    os.mkfifo(reports)
    node.restarts()
    assert node.supervisor.poll() == []
    node.kill(launch)
    assert node.ended(launch).code == -9


def test_a_page_that_cannot_be_written_does_not_stop_the_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = node.starts(order(RUNS_FOREVER, max_steps=5))
    (run,) = node.supervisor.running()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        run.extend(Extend(1, 1, 1, 10, 0.0))
        run.route(RequestRouting(1, 1.0, (1.0,)))
    node.kill(launch)
    assert node.ended(launch).code == -9


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"deadline": 1}',
        '{"deadline": "x", "why": "", "asked": true}',
        '{"deadline": 1, "why": "", "asked": true, "x": 1}',
    ],
)
def test_a_damaged_request_to_stop_counts_as_missing(node: Node, content: str) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    (node.directory(launch) / "stop.json").write_text(content)
    node.restarts()
    (running,) = node.supervisor.running()
    assert not running.stopping


def full_disk(path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"9" * 400, b"\xff", str(2**60).encode()])
def test_a_number_that_the_control_plane_has_issued_is_kept_and_a_damaged_one_counts_as_missing(
    node: Node, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(node.supervisor, "n", "")
    assert agent._hello().incarnation == 0
    agent.own.keep_incarnation(7)
    agent.own.keep_incarnation(0)  # a control plane of a former version issues none
    assert [one._hello().incarnation for one in (agent, Agent(node.supervisor, "n", ""))] == [7, 7]
    with monkeypatch.context() as patch:
        patch.setattr("fairlead.files.before_write", full_disk)
        agent.own.keep_incarnation(8)
    assert [one._hello().incarnation for one in (agent, Agent(node.supervisor, "n", ""))] == [8, 0], "with 7 it is refused"
    (node.root / "incarnation").write_bytes(content)
    assert Agent(node.supervisor, "n", "")._hello().incarnation == 0
    (node.root / "journal").write_bytes(b"\xff\0" + content)
    assert Agent(node.supervisor, "n", "")._hello().journal == ""


def test_odd_files_among_the_jobs_are_ignored(node: Node) -> None:
    jobs = node.root / "jobs"
    (jobs / "7").write_text("no folder")
    (jobs / "8").mkdir()
    (jobs / "8" / "1").write_text("no folder")
    (jobs / ("9" * 18)).mkdir()
    (jobs / ("9" * 18) / "1").mkdir()
    (jobs / "9").symlink_to("/")
    node.restarts()
    assert node.supervisor.running() == []
    assert node.supervisor.sweep(0.0) == 0


def test_odd_files_among_logs_and_outputs_do_not_stop_the_agent(node: Node) -> None:
    launch = node.launch(order("print('up')", outputs=("x",)))
    node.ended(launch)
    logs = node.directory(launch) / "0" / "log"
    for name in ("²", "9" * 20, "x"):
        (logs / name).write_text("odd")
    assert read_log_files(logs, -100, 100).data == b"up\n"
    os.mkfifo(logs / ("0" * 19 + "9"))
    with pytest.raises(NodeError):
        node.supervisor.read_log(1, 1, 0)
    listed = node.directory(launch) / "0" / "outputs" / "list.json"
    for content in ("{}", "[]", '{"files": 3}', '{"files": [3]}', "[" * 10_000, "{"):
        listed.write_text(content)
        with pytest.raises(OrderRefused):
            node.supervisor.read_output(1, 1, "x", 0, 10)


NOBODY = User("nobody", 65534, 65534, (65534,), "/")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as another user")

WRITES_RECORDS = """
work=$(dirname "$FAIRLEAD_LEASE"); launch=$(dirname "$work"); root=$(dirname "$(dirname "$(dirname "$launch")")")
for file in "$work/exit.json" "$work/exit.json.new" "$work/reports.read" "$launch/stop.json" "$launch/ended.json" \
    "$launch/record.json" "$launch/settled" "$root/identity" "$root/incarnation" "$root/journal" "$root/fencing-deadline" \
    "$root/lock" "$root/jobs/9/x" "$work/log/00000000000000000000"; do
    (echo x > "$file") 2> /dev/null && echo "wrote $file"
    mv "$file" "$file.old" 2> /dev/null && echo "moved $file"
done
for folder in "$work" "$launch" "$(dirname "$launch")" "$root/jobs" "$root"; do
    mv "$folder" "$folder.old" 2> /dev/null && echo "moved $folder"
    touch "$folder/new" 2> /dev/null && echo "new in $folder"
done
echo x > "$FAIRLEAD_CHECKPOINT_DIR/mine" && echo '{"loss": 1}' > "$FAIRLEAD_REPORTS" && id -u
"""


@as_root
def test_a_job_of_another_user_cannot_write_the_agents_records(make_node: Callable[..., Node], open_root: Path) -> None:
    node = make_node(AgentSettings(user=NOBODY), root=open_root / "agent")
    Agent(node.supervisor, "n", "")
    launch = order()
    launch = node.launch(replace(launch, task=replace(launch.task, command=("sh", "-c", WRITES_RECORDS))))
    assert node.ended(launch).code == 0
    assert node.printed(launch) == "65534\n"
    assert node.metrics() == [("loss", 1.0)]


@as_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_root_that_jobs_can_write_to_is_refused(make_node: Callable[..., Node], open_root: Path, mode: int) -> None:
    root = open_root / "agent"
    root.mkdir()
    os.chown(root, 65534 if mode == 0o775 else 0, 65534)
    root.chmod(mode)
    with pytest.raises(NodeError, match="jobs of nobody could write to it"):
        make_node(AgentSettings(user=NOBODY), root=root)
