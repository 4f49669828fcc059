"""A look ahead for who may not see everybody's jobs: a control plane has it made by this module as a process beside it, with
what is idle of the machine, and tells each what is theirs. `python -m fairlead.study.foresee` reads a line of JSON and a state
as a journal's snapshots spell it, and prints lines of which the last one counts: that nothing was seen yet, and what was."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

import orjson

from fairlead.core.errors import FairleadError
from fairlead.engine.saved import load
from fairlead.study.ahead import Ahead, Asked, look_ahead, spelled, unseen

BUDGET_S = 15.0
TO_BEGIN_S = 20.0  # to start, to read the state and to end; a machine may have much else to do
TO_END_S = 5.0
NICE = 15


async def foresee(now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
    """What a process that looks ahead says, or had said when it took too long; an error with its last line where it fails."""
    about = orjson.dumps({"now": now, "rates": rates, "budget_s": BUDGET_S})
    try:
        with TemporaryFile() as said, TemporaryFile() as problems:  # no pipes, which whoever it leaves behind would hold open
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", __name__),  # nothing is imported from where the control plane happens to stand
                stdin=asyncio.subprocess.PIPE,
                stdout=said,
                stderr=problems,
                env={name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")},
                start_new_session=True,
            )
            failed: int | None = 0
            try:
                async with asyncio.timeout(BUDGET_S + TO_BEGIN_S):
                    await process.communicate(about + b"\n" + saved)
                    failed = process.returncode
            except TimeoutError:
                pass  # one decision may take longer than all looks should
            finally:
                await _end(process)
            if failed:
                lines = _text(problems).decode(errors="replace").strip().splitlines()
                raise FairleadError(lines[-1] if lines else f"what looks ahead ended with {failed}")
            *whole, _ = _text(said).split(b"\n")
    except OSError as problem:
        raise FairleadError(f"no process that looks ahead can be had: {problem}") from None
    if not whole:
        raise FairleadError(f"what looks ahead said nothing in {BUDGET_S + TO_BEGIN_S:g} s")
    told: dict[str, Any] = orjson.loads(whole[-1])
    return told


def _text(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


async def _end(process: asyncio.subprocess.Process) -> None:
    """With all that it has started; who holds its pipes open all the same is not waited for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), TO_END_S)


def main() -> None:
    failed = 1
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # what a policy prints is no answer
        os.nice(NICE)
        about = orjson.loads(sys.stdin.buffer.readline())
        signal.alarm(math.ceil(about["budget_s"] + TO_BEGIN_S))  # it ends then, also where nobody is left to end it

        def say(ahead: Ahead) -> None:
            answer.write(orjson.dumps(spelled(ahead)) + b"\n")
            answer.flush()

        try:
            state, asked = load(sys.stdin.buffer.read()), Asked(budget_s=about["budget_s"])
            state.time = max(state.time, about["now"])
            say(unseen(state, asked))
            say(look_ahead(state, about["rates"], asked))
            failed = 0
        except FairleadError as problem:
            print(problem, file=sys.stderr, flush=True)
    os._exit(failed)  # threads that a policy has started are not waited for


if __name__ == "__main__":
    main()
