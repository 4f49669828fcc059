"""The `fairlead` command as a process of its own, as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"


def environment(*more: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COLUMNS", "FORCE_COLOR")}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, (*more, SOURCE))), "NO_COLOR": "1", "TERM": "dumb"}


def fairlead(*arguments: object, cwd: Path | None = None, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(*paths), capture_output=True, text=True, encoding="utf-8", timeout=300, check=False
    )


def answer(*arguments: object, **how: Any) -> dict[str, Any]:
    """What a command says with --json; it has to succeed and to print one object on one line."""
    done = fairlead(*arguments, "--json", **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


@dataclass(frozen=True)
class Done:
    """How a process ended and what it said."""

    returncode: int
    stdout: str
    stderr: str


def one_after_the_other(cases: Sequence[tuple[Path, Sequence[str]]]) -> list[Done]:
    """Each a process of its own in its folder, forked from one that has imported everything already: most of a command's time
    goes there."""
    script = """
import json, os, sys
from fairlead.cli.main import run
from fairlead.registry import Registry
from fairlead.workloads.catalogue import catalogue
Registry.installed(), catalogue()
for folder, arguments in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.argv = ["fairlead", *arguments]
        run()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    wanted = json.dumps([(str(folder), list(arguments)) for folder, arguments in cases])
    done = subprocess.run(
        [sys.executable, "-c", script], input=wanted, env=environment(), capture_output=True, text=True, timeout=300, check=True
    )
    codes = map(int, done.stdout.split())
    said = (tuple(Path(f"{folder}.{name}").read_text(encoding="utf-8") for name in ("stdout", "stderr")) for folder, _ in cases)
    return [Done(code, *texts) for code, texts in zip(codes, said, strict=True)]
