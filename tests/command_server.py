"""The `fairlead` command as a program, without the second that its imports take.

`install` writes a program `fairlead` that hands its arguments, directory, environment and standard streams to the process of
`foundry.py` and forwards signals. It ends with the exit code of the process that was forked there (`serve_call`). The same
program runs the Python blocks of a page (`session`). The agents of `fairlead up` are such programs, too."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = sys.argv[1:]
if words[:1] == ["up"] and {own_ports}:
    words += [word for name in ("--http", "--agents") if name not in words for word in (name, "127.0.0.1:0")]
order = json.dumps({{"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}}).encode()
socket.send_fds(server, [len(order).to_bytes(8, "big")], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
server.sendall(order)
sys.exit((server.recv(1) or b"\\x46")[0])
"""


def install(folder: Path, address: Path, *, own_ports: bool = False) -> Path:
    """Write the program `fairlead` into a folder. With `own_ports`, each cluster that it starts has ports of its own."""
    folder.mkdir(exist_ok=True)
    program = folder / "fairlead"
    program.write_text(CLIENT.format(python=sys.executable, address=str(address), own_ports=own_ports))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def fork_agents(program: Path) -> None:
    """Let the agents of `fairlead up`, and the clusters of other commands, be forked by the server of a program."""
    from fairlead.runtime import bootstrap, embedded

    def start(words: list[str], **about: Any) -> subprocess.Popen[bytes]:
        assert words[:3] == [sys.executable, "-m", "fairlead.cli.main"]
        return subprocess.Popen([str(program), *words[3:]], **about)

    bootstrap.subprocess = embedded.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)  # type: ignore[assignment]


def session() -> None:
    """Run the files named on standard input, line by line, in one namespace; answer each with an empty line or an error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, "")
    space: dict[str, Any] = {"__name__": "page"}
    for line in sys.stdin:
        path = line.strip()
        try:
            exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec", dont_inherit=True), space)
            problem = ""
        except BaseException:
            problem = traceback.format_exc()
        sys.stdout.flush()
        print(json.dumps(problem), file=answers, flush=True)


def _become(order: dict[str, Any], streams: list[int]) -> int:
    import fairlead.cli.main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = ["fairlead", *order["words"]]
    sys.modules["__main__"] = fairlead.cli.main
    try:
        if order["words"] == ["run python blocks"]:
            session()
        else:
            fairlead.cli.main.run()
    except SystemExit as problem:
        return problem.code if isinstance(problem.code, int) else int(problem.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def serve_call(client: socket.socket) -> None:
    """Run one call, in a process of its own, and tell the client how it ended."""
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length and (more := client.recv(length - len(text))):
        text += more
    if (pid := os.fork()) == 0:
        client.close()
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _become(json.loads(text), streams)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    ended = os.pidfd_open(pid)
    while ended not in (ready := select.select([client, ended], [], [])[0]) and client in ready:
        number = client.recv(1)
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        client.send(bytes([code if code >= 0 else 128 - code]))
