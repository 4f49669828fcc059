"""Forecasts and answers to other questions in processes of their own, at low priority, for the control plane.

`python -m fairlead.experiments.lookahead_process` stays warm: it reads requests, each a line of JSON and a saved state, and
forks a process for each. For a forecast, that one forks others, which simulate scenarios at the same time. Answers are lines of
JSON, of which the last one counts, with the fields that are sent once; of a forecast: the jobs without any simulation, with the
first one, with the scenarios. The warm process never runs a policy, and ends what a request has left behind, also when it is
ended itself."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import re
import resource
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

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
from fairlead.experiments.questions import KEPT, answer_question
from fairlead.runtime.protocol.whatif_request import NoAnswerInTime, RefusedQuestion

if TYPE_CHECKING:
    from fairlead.runtime.control.lookahead_service import SimulationProcesses

BUDGET_S = 15.0
ANSWER_S, MIN_SCENARIOS = 1.5, 4  # beyond so many, no scenario is begun that would end later
STARTUP_S = 20.0  # to start, to read the state and to end, on a busy machine
KILL_WAIT_S = 5.0
NICE = 15
MAX_PROCESSES = 8
MEMORY_BYTES = 2 << 30  # of each process
MAX_LINE_BYTES = 1 << 28
IDLE_S = 300.0  # after which a process for questions ends
MIN_ANSWER_S = 1.0  # of a question whose budget was spent on the start of the process
LATE_S = 0.5  # beyond the budget of a question: then its process is killed, and its last answer counts

_KEPT = b'{"%b":' % KEPT.encode()
_ENDED = re.compile(rb'\{"ended":-?\d+\}\n\Z')


class WarmLookahead:
    """A process that waits for requests, one at a time. It starts with the first one, and again after one that took too long or
    was cancelled. It ends when it had none for `idle_s`."""

    def __init__(self, idle_s: float = math.inf) -> None:
        self._idle_s = idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._busy = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def forecast(self, now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
        """The last forecast that the process printed, also where it takes too long.

        Raises:
            FairleadError: the forecast failed, with the reason, or nothing was printed.
        """
        return await self._request({"now": now, "rates": rates, "budget_s": BUDGET_S, "bytes": len(saved)}, saved)

    async def ask(
        self, now: float, saved: bytes, rates: Mapping[str, Any], question: Mapping[str, Any], budget_s: float
    ) -> dict[str, Any]:
        """The answer to a question (see `questions.py`), as far as it is known after `budget_s`.

        Raises:
            RefusedQuestion: the question cannot be answered as it is, with the reason.
            FairleadError: the simulation failed, with the reason, or there was no answer in time.
        """
        request = {"now": now, "rates": rates, "budget_s": budget_s, "bytes": len(saved)}
        return await self._request({**request, "question": question, "asked_s": time.monotonic()}, saved)

    async def _request(self, request: Mapping[str, Any], saved: bytes) -> dict[str, Any]:
        try:
            line = orjson.dumps(request)
        except TypeError as problem:
            raise RefusedQuestion(f"a value cannot be passed on: {problem}") from None
        async with self._busy:
            if self._idle is not None:
                self._idle.cancel()
            try:
                return await self._ask(line + b"\n" + saved, request["budget_s"])
            except (RefusedQuestion, NoAnswerInTime):
                raise
            except OSError as problem:
                await self.close()
                raise FairleadError(f"cannot start a forecast process: {problem}") from None
            except BaseException:
                await self.close()  # it is of no use any more, or its answer is
                raise
            finally:
                if self._idle_s < math.inf:
                    self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()  # it ends by itself then

    async def _ask(self, request: bytes, budget_s: float) -> dict[str, Any]:
        if self._process is None or self._process.returncode is not None:
            self._process = await _started()
        process = self._process
        last = kept = b""  # only these are parsed: the control plane answers other requests meanwhile
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(budget_s + STARTUP_S):
                process.stdin.write(request)
                await process.stdin.drain()
                while line := await process.stdout.readline():
                    if _ENDED.search(line):  # maybe behind the begin of an answer
                        break
                    if line.startswith(_KEPT):
                        kept = line
                    else:
                        last = line
                else:
                    raise FairleadError(f"the forecast process ended with {await process.wait()}")
        except TimeoutError:  # one decision may take longer than the whole budget
            await self.close()
        if not last:
            raise NoAnswerInTime(f"the forecast process printed nothing in {budget_s:g} s")
        answer: dict[str, Any] = orjson.loads(last)
        if "problem" in answer:
            raise RefusedQuestion(answer["problem"]) if answer["refused"] else FairleadError(answer["problem"])
        return answer | orjson.loads(kept)[KEPT] if kept else answer

    async def close(self) -> None:
        """End the process, with all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):  # the first one lets it end what answers a request
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILL_WAIT_S)
                return


def warm_processes() -> SimulationProcesses:
    """The processes of a control plane, which start when they are needed."""
    from fairlead.runtime.control.lookahead_service import SimulationProcesses  # not needed in these processes

    return SimulationProcesses(WarmLookahead().forecast, WarmLookahead(IDLE_S).ask, WarmLookahead(IDLE_S).ask)


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
    if "question" in request:
        _answer_question(request, saved, answer)
        return

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


def _answer_question(request: Mapping[str, Any], saved: bytes, answer: IO[bytes]) -> None:
    def send(found: Mapping[str, Any]) -> None:
        answer.write(orjson.dumps(found) + b"\n")
        answer.flush()

    state = load(saved)
    state.time = max(state.time, request["now"])
    until_s = max(request["asked_s"] + request["budget_s"], time.monotonic() + MIN_ANSWER_S)
    signal.setitimer(signal.ITIMER_REAL, until_s - time.monotonic() + LATE_S)
    answer_question(state, request["rates"], request["question"], send, lambda: until_s - time.monotonic())


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
        child = 0

        def end(*_: object) -> None:
            if child:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            os._exit(1)

        signal.signal(signal.SIGTERM, end)
        while line := sys.stdin.buffer.readline():
            request = orjson.loads(line)
            saved = sys.stdin.buffer.read(request["bytes"])
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            child = os.fork()
            if not child:
                _handle(request, saved, answer)
            with suppress(OSError):  # it has done so itself, or has ended
                os.setpgid(child, child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            _, status = os.waitpid(child, 0)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            child = 0
            answer.write(orjson.dumps({"ended": os.waitstatus_to_exitcode(status)}) + b"\n")
            answer.flush()
    os._exit(0)


def _handle(request: Mapping[str, Any], saved: bytes, answer: IO[bytes]) -> None:
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.alarm(math.ceil(request["budget_s"] + STARTUP_S))  # it ends then, also without its parent
        _answer(request, saved, answer)
    except Exception as problem:
        text = str(problem) if isinstance(problem, FairleadError) else f"{type(problem).__name__}: {problem}"
        refused = isinstance(problem, RefusedQuestion)
        answer.write(orjson.dumps({"problem": text, "refused": refused}) + b"\n")
        answer.flush()
    finally:
        os._exit(0)  # do not wait for threads that a policy has started


if __name__ == "__main__":
    _main()
