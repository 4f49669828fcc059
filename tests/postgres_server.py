"""A real PostgreSQL server for tests and benchmarks: Debian's package, a folder and a socket of its own, an unprivileged user.
It can be killed and started again. It ends with the process that started it."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psycopg

DEADLINE_S = 180.0
_QUIET = ("listen_addresses=", "shared_buffers=16MB", "max_connections=20", "max_wal_size=64MB", "log_min_messages=fatal")


class PostgresServer:
    """`with PostgresServer() as server:`; each `server.database()` is the URL of a new, empty database."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fairlead-postgres-"))
        self._owner = _owner()
        if self._owner is not None:
            os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str | None:
        """Why there can be no server here, or None."""
        if _programs() is None:
            return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.getuid() == 0 and _owner() is None:
            return "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'"
        return None

    def __enter__(self) -> PostgresServer:
        made = self._run(
            "initdb", "--pgdata", str(self._data), "--auth=trust", "--username=fairlead", "--encoding=UTF8", "--no-sync"
        )
        _, errors = made.communicate(timeout=DEADLINE_S)
        assert made.returncode == 0, errors.decode()
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(DEADLINE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self) -> str:
        name = f"journal_{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://fairlead@/{database}?host={self.folder}"

    def size(self, url: str) -> int:
        """What a database takes on disk, in bytes."""
        with psycopg.connect(url) as connection:
            connection.execute("CHECKPOINT")
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
            assert row is not None
            return int(row[0])

    def copied(self, url: str, *what: str) -> str:
        """A new database from another one's dump."""
        programs, copy = _programs(), self.database()
        assert programs is not None
        dump = subprocess.run([str(programs / "pg_dump"), *what, url], capture_output=True, check=True).stdout
        subprocess.run([str(programs / "psql"), "--quiet", "--set=ON_ERROR_STOP=1", copy], input=dump, check=True)
        return copy

    def start(self) -> None:
        """Returns when it answers. What a killed one left behind may keep a new one waiting."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            if self._process is None or self._process.poll() is not None:
                settings = itertools.chain.from_iterable(("-c", setting) for setting in _QUIET)
                self._process = self._run("postgres", "-D", str(self._data), "-k", str(self.folder), *settings)
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the server does not answer: {error}") from error
                try:
                    self._process.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue

    def kill(self) -> None:
        """At once, without a word to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        programs = _programs()
        assert programs is not None
        owner = self._owner
        as_owner = {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        return subprocess.Popen(
            [*_dies_with_us(), str(programs / program), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            **as_owner,  # type: ignore[arg-type]
        )


def _programs() -> Path | None:
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: [int(n) for n in folder.parent.name.split(".")]
    )
    on_path = shutil.which("postgres")
    return next((f for f in reversed(folders) if (f / "postgres").exists()), Path(on_path).parent if on_path else None)


def _owner() -> pwd.struct_passwd | None:
    """Whom the server runs as: ourselves, but never root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _dies_with_us() -> Sequence[str]:
    return ("setpriv", "--pdeathsig", "QUIT") if shutil.which("setpriv") else ()
