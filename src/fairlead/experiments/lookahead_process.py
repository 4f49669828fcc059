"""A forecast in a process of its own, at low priority: a control plane makes one for users who may not see all jobs.

`python -m fairlead.experiments.lookahead_process` reads one line of JSON and a saved state. It prints forecasts as lines of
JSON, of which the last one counts: first the jobs without any simulation, then the forecast."""

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
from fairlead.engine.state_codec import load
from fairlead.experiments.lookahead import ClusterForecast, ForecastOptions, forecast, forecast_to_json, without_simulation

BUDGET_S = 15.0
STARTUP_S = 20.0  # to start, to read the state and to end, on a busy machine
KILL_WAIT_S = 5.0
NICE = 15


async def forecast_in_process(now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
    """The last forecast that the process printed, also where it takes too long.

    Raises:
        FairleadError: the process failed, with its last line, or printed nothing.
    """
    request = orjson.dumps({"now": now, "rates": rates, "budget_s": BUDGET_S})
    try:
        with TemporaryFile() as printed, TemporaryFile() as problems:  # no pipes: its children would hold them open
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", __name__),  # -P: import nothing from the control plane's working directory
                stdin=asyncio.subprocess.PIPE,
                stdout=printed,
                stderr=problems,
                env={name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")},
                start_new_session=True,
            )
            failed: int | None = 0
            try:
                async with asyncio.timeout(BUDGET_S + STARTUP_S):
                    await process.communicate(request + b"\n" + saved)
                    failed = process.returncode
            except TimeoutError:
                pass  # one decision may take longer than the whole budget
            finally:
                await _kill(process)
            if failed:
                lines = _content(problems).decode(errors="replace").strip().splitlines()
                raise FairleadError(lines[-1] if lines else f"the forecast process ended with {failed}")
            *complete, _ = _content(printed).split(b"\n")
    except OSError as problem:
        raise FairleadError(f"cannot start a forecast process: {problem}") from None
    if not complete:
        raise FairleadError(f"the forecast process printed nothing in {BUDGET_S + STARTUP_S:g} s")
    answer: dict[str, Any] = orjson.loads(complete[-1])
    return answer


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


async def _kill(process: asyncio.subprocess.Process) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), KILL_WAIT_S)


def _main() -> None:
    failed = 1
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # output of a policy is no answer
        os.nice(NICE)
        request = orjson.loads(sys.stdin.buffer.readline())
        signal.alarm(math.ceil(request["budget_s"] + STARTUP_S))  # it ends then, also without its parent

        def send(found: ClusterForecast) -> None:
            answer.write(orjson.dumps(forecast_to_json(found)) + b"\n")
            answer.flush()

        try:
            state, options = load(sys.stdin.buffer.read()), ForecastOptions(budget_s=request["budget_s"])
            state.time = max(state.time, request["now"])
            send(without_simulation(state, options))
            send(forecast(state, request["rates"], options))
            failed = 0
        except FairleadError as problem:
            print(problem, file=sys.stderr, flush=True)
    os._exit(failed)  # do not wait for threads that a policy has started


if __name__ == "__main__":
    _main()
