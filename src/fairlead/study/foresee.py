"""A look ahead for who may not see everybody's jobs: a control plane has it made by this module as a process beside it, with
what is idle of the machine, and tells each what is theirs. `python -m fairlead.study.foresee` reads a line of JSON and a state
as a journal's snapshots spell it, and prints what was seen."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

import orjson

from fairlead.core.errors import FairleadError
from fairlead.engine.saved import load
from fairlead.study.ahead import Asked, look_ahead, spelled

BUDGET_S = 15.0
TO_BEGIN_S = 20.0  # to start, to read the state and to end; a machine may have much else to do
NICE = 15


async def foresee(now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
    """What a process that looks ahead says; an error with its last line where it fails."""
    about = orjson.dumps({"now": now, "rates": rates, "budget_s": BUDGET_S})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(BUDGET_S + TO_BEGIN_S):
            said, problem = await process.communicate(about + b"\n" + saved)
    except TimeoutError:
        raise FairleadError(f"to look ahead took more than {BUDGET_S + TO_BEGIN_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = problem.decode(errors="replace").strip().splitlines()
        raise FairleadError(lines[-1] if lines else f"what looks ahead ended with {process.returncode}")
    told: dict[str, Any] = orjson.loads(said)
    return told


def main() -> None:
    os.nice(NICE)
    about = orjson.loads(sys.stdin.buffer.readline())
    try:
        state = load(sys.stdin.buffer.read())
        state.time = max(state.time, about["now"])
        ahead = look_ahead(state, about["rates"], Asked(budget_s=about["budget_s"]))
    except FairleadError as problem:
        sys.exit(str(problem))
    sys.stdout.buffer.write(orjson.dumps(spelled(ahead)))


if __name__ == "__main__":
    main()
