"""Forecasts in processes of their own, at low priority, for the control plane.

`python -m fairlead.experiments.lookahead_process` stays warm: it reads requests, each a line of JSON and a saved state, and
forks a process for each. That one forks others, which simulate scenarios at the same time. It prints forecasts as lines of
JSON, of which the last one counts: first the jobs without any simulation, then with the first one, then with the scenarios. The
warm process never runs a policy, and ends what a request has left behind."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

import orjson

from fairlead.core.errors import FairleadError
from fairlead.engine.state_codec import load
from fairlead.experiments.forecast_json import forecast_to_json
from fairlead.experiments.lookahead import (
    ClusterForecast,
    ForecastOptions,
    ForwardRun,
    PreparedForecast,
    simulation_errors,
    without_simulation,
)

BUDGET_S = 15.0
ANSWER_S, MIN_SCENARIOS = 1.5, 4  # beyond so many, no scenario is begun that would end later
STARTUP_S = 20.0  # to start, to read the state and to end, on a busy machine
KILL_WAIT_S = 5.0
NICE = 15
MAX_PROCESSES = 8
MEMORY_BYTES = 2 << 30  # of each process
MAX_LINE_BYTES = 1 << 28


class WarmLookahead:
    """A process that waits for requests; it starts with the first one, and again after one that took too long."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._busy = asyncio.Lock()

    async def forecast(self, now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
        """The last forecast that the process printed, also where it takes too long.

        Raises:
            FairleadError: the forecast failed, with the reason, or nothing was printed.
        """
        request = {"now": now, "rates": rates, "budget_s": BUDGET_S, "bytes": len(saved)}
        async with self._busy:
            try:
                return await self._ask(orjson.dumps(request) + b"\n" + saved)
            except OSError as problem:
                await self.close()
                raise FairleadError(f"cannot start a forecast process: {problem}") from None
            except BaseException:
                await self.close()  # it is of no use any more, or its answer is
                raise

    async def _ask(self, request: bytes) -> dict[str, Any]:
        if self._process is None or self._process.returncode is not None:
            self._process = await _started()
        process, answer = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(BUDGET_S + STARTUP_S):
                process.stdin.write(request)
                await process.stdin.drain()
                while line := await process.stdout.readline():
                    found: dict[str, Any] = orjson.loads(line)
                    if "problem" in found:
                        raise FairleadError(found["problem"])
                    if "ended" in found:
                        break
                    answer = found
                else:
                    raise FairleadError(f"the forecast process ended with {await process.wait()}")
        except TimeoutError:  # one decision may take longer than the whole budget
            await self.close()
        if answer is None:
            raise FairleadError(f"the forecast process printed nothing in {BUDGET_S + STARTUP_S:g} s")
        return answer

    async def close(self) -> None:
        """End the process, with all that it has started."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILL_WAIT_S)


async def forecast_in_process(now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
    """One forecast, in a process that ends then."""
    warm = WarmLookahead()
    try:
        return await warm.forecast(now, saved, rates)
    finally:
        await warm.close()


async def _started() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__),  # -P: import nothing from the control plane's working directory
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")},
        start_new_session=True,
        limit=MAX_LINE_BYTES,
    )


def _answer(request: Mapping[str, Any], saved: bytes, answer: IO[bytes]) -> None:
    """Print the forecasts for one request."""

    def send(found: ClusterForecast) -> None:
        answer.write(orjson.dumps(forecast_to_json(found)) + b"\n")
        answer.flush()

    began, budget_s = time.monotonic(), float(request["budget_s"])

    def keep_running(simulated_s: float) -> bool:
        return time.monotonic() - began < budget_s

    state, options = load(saved), ForecastOptions(budget_s=budget_s)
    state.time = max(state.time, request["now"])
    send(without_simulation(state, options))
    with simulation_errors():
        prepared = PreparedForecast(state, request["rates"], options)
        workers = min(len(os.sched_getaffinity(0)), MAX_PROCESSES, options.simulations if prepared.scenarios.numbers else 0)
        seeds, least = (
            (range(place, options.simulations, workers) for place in range(workers)),
            -(-MIN_SCENARIOS // max(1, workers)),
        )
        results = [_in_fork(prepared, each, least, began, budget_s) for each in seeds]
        first = prepared.scenarios.simulate(None, keep_running)
        send(prepared.result([first]))
    runs: list[tuple[int, ForwardRun]] = []
    for pid, file in results:
        os.waitpid(pid, 0)
        file.seek(0)
        with suppress(EOFError, pickle.UnpicklingError):  # the end, or where the process was killed
            while True:
                runs.append(pickle.load(file))
    if workers:
        send(prepared.result([first, *(run for _, run in sorted(runs, key=lambda one: one[0]))]))


def _in_fork(prepared: PreparedForecast, seeds: range, least: int, began: float, budget_s: float) -> tuple[int, IO[bytes]]:
    """Simulate these scenarios in a process, one after the other; it writes them to a file."""
    file = TemporaryFile()  # noqa: SIM115 (the caller reads it)
    if pid := os.fork():
        return pid, file
    try:
        signal.alarm(math.ceil(budget_s + STARTUP_S))
        since = time.monotonic()
        for done, seed in enumerate(seeds):
            spent_s = time.monotonic() - since
            if done >= least and time.monotonic() - began + spent_s / done > ANSWER_S:
                break
            run = prepared.scenarios.simulate(seed, lambda simulated_s: time.monotonic() - began < budget_s)
            pickle.dump((seed, run), file)
            file.flush()
    finally:
        os._exit(0)


def _main() -> None:
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # output of a policy is no answer
        os.nice(NICE)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        while line := sys.stdin.buffer.readline():
            request = orjson.loads(line)
            saved = sys.stdin.buffer.read(request["bytes"])
            pid = os.fork()
            if not pid:
                _handle(request, saved, answer)
            _, status = os.waitpid(pid, 0)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            answer.write(orjson.dumps({"ended": os.waitstatus_to_exitcode(status)}) + b"\n")
            answer.flush()
    os._exit(0)


def _handle(request: Mapping[str, Any], saved: bytes, answer: IO[bytes]) -> None:
    try:
        os.setpgid(0, 0)
        signal.alarm(math.ceil(request["budget_s"] + STARTUP_S))  # it ends then, also without its parent
        _answer(request, saved, answer)
    except Exception as problem:
        told = str(problem) if isinstance(problem, FairleadError) else f"{type(problem).__name__}: {problem}"
        answer.write(orjson.dumps({"problem": told}) + b"\n")
        answer.flush()
    finally:
        os._exit(0)  # do not wait for threads that a policy has started


if __name__ == "__main__":
    _main()
