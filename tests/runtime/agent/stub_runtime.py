"""A container runtime for tests. It runs a command as the runtime of its name does: apptainer in its own place, podman below a
monitor that outlives it, docker below a daemon. Copied to a folder of programs, it writes its calls next to itself. As root it
gives the command a root folder of its own, with the programs of this machine and the mounts of its call."""

import contextlib
import csv
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

NAME = os.path.basename(sys.argv[0])
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/proc", "/dev", "/etc")
VALUED = ("--name", "--env", "--mount", "--home", "--pwd")
NEW_MOUNTS, BIND, READ_ONLY, REMOUNT, RECURSIVE, PRIVATE = 0x20000, 4096, 1, 32, 16384, 1 << 18


def parsed(words):
    """The options of a call by name, and the words after them."""
    options = []
    while words and words[0].startswith("--"):
        name, equals, value = words.pop(0).partition("=")
        options.append((name, value if equals or name not in VALUED else words.pop(0)))
    return options, words


def environment_of(options):
    if NAME == "apptainer":
        mark = "APPTAINERENV_"
        inside = {name.removeprefix(mark): value for name, value in os.environ.items() if name.startswith(mark)}
        inside["HOME"] = dict(options)["--home"]
    else:
        pairs = [value.partition("=") for name, value in options if name == "--env"]
        inside = {name: value if equals else os.environ[name] for name, equals, value in pairs}
    return {"PATH": "/usr/bin:/bin", **inside}


def enter(options):
    """Give this process the root folder, the directory and the user of a container."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number):
        if number:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def bind(source, target, read_only):
        target = root + target
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "a").close()
        call(libc.mount(source.encode(), target.encode(), None, BIND | RECURSIVE, None))
        if read_only:
            call(libc.mount(None, target.encode(), None, BIND | REMOUNT | READ_ONLY, None))

    found = dict(options)
    where = found.get("--workdir") or found["--pwd"]
    if os.geteuid():
        os.chdir(where)
        return
    call(libc.unshare(NEW_MOUNTS))
    call(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None))
    root = tempfile.mkdtemp(prefix="stub-root-")
    call(libc.mount(b"tmpfs", root.encode(), b"tmpfs", 0, None))
    for path in SYSTEM:
        if os.path.exists(path):
            bind(path, path, False)
    mounts = [next(csv.reader([value])) for name, value in options if name == "--mount"]
    for fields in mounts:
        about = dict(field.split("=", 1) for field in fields if "=" in field)
        bind(about["source"], about["destination"], "ro" in fields)
    if "--home" in found:
        bind(found["--home"], found["--home"], False)
    os.chroot(root)
    os.chdir(where)
    if "--user" in found:
        uid, _, gid = found["--user"].partition(":")
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))


def start(options, words, **more):
    return subprocess.Popen(words, env=environment_of(options), preexec_fn=lambda: enter(options), **more)


def status_of(process):
    code = process.wait()
    return code if code >= 0 else 128 - code


def apptainer(options, words):
    environment = environment_of(options)
    enter(options)
    os.execvpe(words[0], words, environment)


def podman(options, words):
    ready, told = os.pipe()
    pids, early = [], []  # a command may be at work before this process knows of it
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(pids[0], number) if pids else early.append(number))
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        process = start(options, words, start_new_session=True)
        os.write(told, f"{process.pid}\n".encode())
        os.write(told, f"{status_of(process)}\n".encode())
        os._exit(0)
    os.close(told)
    os.wait()
    lines = os.fdopen(ready)
    pids.append(int(lines.readline()))
    for number in early:
        os.kill(pids[0], number)
    sys.exit(int(lines.readline() or 125))


def ask(message, *files):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{sys.argv[0]}.socket")
    socket.send_fds(connection, [json.dumps(message).encode() + b"\n"], files)
    return connection.makefile()


def docker(options, words):
    name = dict(options)["--name"]
    inside = environment_of(options)
    signal.signal(signal.SIGTERM, lambda number, _: ask({"do": "signal", "name": name, "number": number}))
    lines = ask({"do": "run", "name": name, "options": options, "words": words, "environment": inside}, 1, 2)
    sys.exit(int(lines.readline() or 125))


def daemon():
    containers, starting = {}, threading.Lock()
    listener = socket.create_server(f"{sys.argv[0]}.socket", family=socket.AF_UNIX)

    def serve(connection):
        data, files, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        message = json.loads(data)
        if message["do"] == "run":
            options = message["options"]
            with starting:  # whoever sees its output can signal it
                process = containers[message["name"]] = subprocess.Popen(
                    message["words"],
                    env=message["environment"],
                    preexec_fn=lambda: enter(options),
                    stdout=files[0],
                    stderr=files[1],
                )
            for file in files:
                os.close(file)
            with contextlib.suppress(OSError):
                connection.sendall(f"{status_of(process)}\n".encode())
        else:
            with starting:
                process = containers.get(message["name"])
            if process is not None:
                process.send_signal(message.get("number", signal.SIGKILL))
        connection.close()

    print("listens", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def main():
    _, words = parsed(sys.argv[1:])
    what = words.pop(0)
    if what == "daemon":
        daemon()
    with open(f"{sys.argv[0]}.calls", "a") as calls:
        calls.write(json.dumps({"words": sys.argv[1:], "environment": dict(os.environ), "user": os.getuid()}) + "\n")
    if what == "rm":
        if NAME == "docker":
            ask({"do": "kill", "name": words[-1]}).readline()
        return
    options, words = parsed(words)
    image = words.pop(0)
    if image == "missing":
        print("no such image", file=sys.stderr)
        sys.exit(125)
    {"apptainer": apptainer, "podman": podman, "docker": docker}[NAME](options, words)


if __name__ == "__main__":
    main()
