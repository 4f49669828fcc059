"""Read an ONNX file in a separate process with limits on memory and time, since a file may crash third-party parsers."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead.core.errors import FairleadError, InputError
from fairlead.prediction import graph
from fairlead.prediction.graph import Graph, Operator

MEMORY = 4 * 2**30  # bytes of address space, and some for each byte of the file
COPIES = 3  # of the file: as bytes, as messages, as messages without weights
SECONDS = 10.0
BYTES_PER_S = 50e6  # of a slow disk


def load_graph_in_process(path: Path, sizes: Mapping[str, int] | None = None) -> Graph:
    """As `graph.load_graph`."""
    size = path.stat().st_size if path.is_file() else 0
    memory, seconds = MEMORY + COPIES * size, SECONDS + size / BYTES_PER_S
    asked = [sys.executable, "-P", "-m", "fairlead.prediction.onnx_process", str(memory), str(path), json.dumps(sizes or {})]
    try:
        found = subprocess.run(
            asked,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each would reserve address space
        )
    except subprocess.TimeoutExpired:
        raise InputError(path, f"a model that can be read in {seconds:.0f} s", field="model") from None
    try:
        answer = json.loads(found.stdout) if found.returncode == 0 else {}
    except ValueError:
        answer = {}
    if "wrong" in answer:
        raise InputError(path, answer["wrong"], field=answer["field"], value=answer["value"])
    if "problem" in answer:
        raise FairleadError(answer["problem"])
    if "graph" not in answer:
        raise InputError(
            path,
            f"a model that can be read in {memory / 2**30:.0f} GB of memory; reading it ended with status {found.returncode}",
            field="model",
        )
    return Graph(**{**answer["graph"], "operators": tuple(Operator(*one) for one in answer["graph"]["operators"])})


def _tell(path: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    try:
        found = graph.load_graph(path, sizes)
    except InputError as problem:
        return {"wrong": problem.expected, "field": problem.field, "value": _plain(problem.value)}
    except FairleadError as problem:
        return {"problem": str(problem)}
    answer = {name: value for name, value in vars(found).items() if name != "operators"}
    return {"graph": {**answer, "operators": [tuple(asdict(one).values()) for one in found.operators]}}


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, int | str) else repr(value)


def _main(memory: str, path: str, sizes: str) -> None:
    for limit, most in ((resource.RLIMIT_AS, int(memory)), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # some systems know no such limit
            resource.setrlimit(limit, (most, most))
    print(json.dumps(_tell(Path(path), json.loads(sizes))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
