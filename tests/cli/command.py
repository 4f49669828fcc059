"""The `fairlead` command as people run it: a process, what it says and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from foundry import Done, environment, foundry

__all__ = ["Done", "answer", "environment", "fairlead", "from_scratch"]


def fairlead(*arguments: object, cwd: Path | None = None) -> Done:
    """A process of its own, forked from one that has imported everything: most of a command's time goes there."""
    return foundry().run(*arguments, cwd=cwd)


def from_scratch(*arguments: object, cwd: Path | None = None, paths: tuple[Path, ...] = ()) -> Done:
    """The same with its own imports, for tests to which they matter."""
    command = [sys.executable, "-m", "fairlead.cli.main", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env=environment(*paths), capture_output=True, encoding="utf-8", timeout=300, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def answer(*arguments: object, **how: Any) -> dict[str, Any]:
    """What a command says with --json; it has to succeed and to print one object on one line."""
    done = fairlead(*arguments, "--json", **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)
