"""A guarded command and everything that it started end with the writer of the guard's standard input."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.runtime.drivers import process_guard

DETACHED = """
import os, subprocess, sys, time
from pathlib import Path
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # as the shim of a job
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)  # the next is an orphan
    Path(sys.argv[1], "orphan").write_text(str(os.getpid()))
    time.sleep(1000)
Path(sys.argv[1], "command").write_text(str(os.getpid()))
time.sleep(1000)
"""
POLITE = """
import signal, sys, time
from pathlib import Path
def leave(*_):
    Path(sys.argv[1], "left").touch()
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
Path(sys.argv[1], "command").touch()
while True:
    time.sleep(0.05)
"""


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    words = [sys.executable, process_guard.__file__, sys.executable, str(folder / "script.py"), str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(words, text=True, **pipes)


def until(reached: Callable[[], object]) -> None:
    while not reached():  # the suite's own limit ends it
        time.sleep(0.02)


def pid_of(path: Path) -> int:
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["the pipe is closed", "its caller is killed"])
def test_all_processes_end_with_the_writer_of_the_pipe(tmp_path: Path, how: str):
    if how == "the pipe is closed":
        guard = start(DETACHED, tmp_path)
        assert guard.wait() == 0, "it left the process tree of its caller"
    else:
        call = "import sys, time, test_process_guard as t; t.start(t.DETACHED, t.Path(sys.argv[1])); time.sleep(1000)"
        guard = subprocess.Popen([sys.executable, "-c", call, str(tmp_path)], cwd=Path(__file__).parent, text=True)
    pids = [pid_of(tmp_path / name) for name in ("orphan", "command")]
    assert all(map(runs, pids))
    if how == "the pipe is closed":
        assert guard.stdin is not None
        guard.stdin.close()
        assert guard.stdout is not None
        assert guard.stdout.read() == f"{process_guard.LAST_LINE} -{signal.SIGKILL:d}\n"
        assert not any(map(runs, pids)), "they had ended before the last line"
    else:
        guard.kill()
        guard.wait()
        until(lambda: not any(map(runs, pids)))


def test_a_byte_asks_the_command_to_leave(tmp_path: Path):
    guard = start(POLITE, tmp_path)
    until((tmp_path / "command").exists)
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdin.write("\n")
    guard.stdin.flush()
    assert guard.stdout.read() == f"{process_guard.LAST_LINE} 7\n"
    assert (tmp_path / "left").exists()


def test_what_a_command_leaves_behind_is_killed(tmp_path: Path):
    ends = DETACHED.removesuffix("time.sleep(1000)\n")
    guard = start(ends, tmp_path)
    assert guard.stdout is not None
    assert guard.stdout.read() == f"{process_guard.LAST_LINE} 0\n"
    orphan = tmp_path / "orphan"
    told = orphan.read_text() if orphan.exists() else ""  # it may have been killed before it wrote its number
    assert not told or not runs(int(told))
