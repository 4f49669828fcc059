"""Horus on a real accelerator: jobs that share it, that refuse to, that are parted, and that run out of memory.

    python benchmarks/colocation.py [--seconds 10] [--out colocation.json]

A control plane decides by `horus` with the estimation `watched`, an agent finds the accelerator through NVML, and jobs train
models of `fairlead profile`. One after the other:

1. A light training, believed to take 70 % of the accelerator, runs alone until the agent's beats have corrected that.
2. Another light one comes to it; one that refuses company waits.
3. A heavy one beside a light one, and two heavy ones.
4. The one that refuses has the accelerator to itself, while somebody waits.
5. A training that bears a slowdown of 2.05 gets company that is predicted to cost it less, is slower, and is parted.
6. A training that says 4 GB and takes 125 runs out of memory beside another, comes back, waits, and has the accelerator alone.

Told are steps per second alone and together, what was predicted, and who stood with whom from when to when. Without an H200,
name other trainings. It takes about four minutes and needs PyTorch, the extra `nvml`, and of the extra `cluster` grpcio and
prometheus-client."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from single_gpu_cluster import agent_of, machine_or_why_not, options_of, passed_on, plane_on, until, write_figures

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.colocated_rates import ColocationModel
from fairlead.workloads.catalogue import accelerator_types

LIGHT, OTHER_LIGHT = "mlp-512@784:512", "unet-16@128:4"
HEAVY, OTHER_HEAVY = "unet-64@128:16", "lstm-650x2@128:16"
TOUCHY, BESIDE_IT = "encoder-512x6@128:8", "unet-64@128:4"
BEARS = 2.05  # between what is predicted there, 1.95 to 2.03 as busy as they are seen, and what is measured, 2.08 to 2.13
BELIEVED = {LIGHT: (70.0, 2.0)}
BALLAST_GB, GREEDY_GB, SAID_GB = 30.0, 125.0, 4.0
TERM_S = 3.0  # a beat every second
SOON_S = 60.0

JOB = """
import sys, time
import torch
import fairlead
from fairlead.profiling.configurations import configuration
from fairlead.profiling.profile_alone import TrainingLoop

name, steps, hold_gb = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
device = "cuda" if torch.cuda.is_available() else "cpu"
held = torch.empty(int(hold_gb * 2**30), dtype=torch.uint8, device=device)
training = TrainingLoop.of(configuration(name), device)
told = time.monotonic()
for step in fairlead.lease(range(steps), save=lambda folder: None):
    training.step()
    if step % 4 == 0:
        training.finish()
        if time.monotonic() > told + 0.25:
            told = time.monotonic()
            print(step, told, flush=True)
"""


@dataclass
class Stage:
    """The accelerator, and who is sent to it. Jobs have names; `tell` gathers what is worth telling."""

    plane: Any
    folder: Path
    seconds: float
    number: dict[str, int] = field(default_factory=dict)
    kind: dict[str, str] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)  # steps per second, by kind
    told: list[dict[str, Any]] = field(default_factory=list)

    def submit(self, name: str, kind: str, hold_gb: float = 0.0, steps: int = 10**9, **more: Any) -> None:
        from fairlead.runtime.protocol.task_file import TaskSpec

        run = [sys.executable, str(self.folder / "job.py"), kind, str(steps), str(hold_gb)]
        task = TaskSpec(name=name, kind=kind, run=run, directory=str(self.folder), env=passed_on(), grace_s=5.0, **more)
        self.number[name], self.kind[name] = len(self.number), kind
        known = self.plane.live.next_number
        self.plane.live.submit_jobs([task.job(name, "benchmark", ())], lambda events: None)
        until(lambda: self.plane.live.next_number > known, f"{name} to be known")

    def cancel(self, name: str) -> None:
        self.plane.live.cancel(self.number[name])
        until(lambda: self.phase(name) == "cancelled", f"{name} to be cancelled")

    def record(self, name: str) -> dict[str, Any]:
        from fairlead.runtime.control.views import job_record

        with self.plane.live.at_rest(SOON_S):
            return job_record(self.plane.loop, self.number[name], self.plane.live.now)

    def phase(self, name: str) -> str:
        return str(self.record(name)["phase"])

    def learned(self, name: str) -> Any:
        with self.plane.live.at_rest(SOON_S):
            return self.plane.loop.state.observations.get(name)

    def memo(self) -> Any:
        with self.plane.live.at_rest(SOON_S):
            return self.plane.loop.state.memo

    def trains(self, *names: str, patience_s: float = SOON_S) -> None:
        """Returns when all of them make steps."""

        def all_go() -> bool:
            since = {name: self.record(name) for name in names}
            return all(one["phase"] == "running" and one["rate"] > 0 for one in since.values())

        until(all_go, f"{' and '.join(names)} to train", lambda: self._printed(names[-1])[-1500:], patience_s)

    def use_is_known(self, kind: str) -> list[float]:
        fact = f"use of {kind} on {self.plane.cluster.type_names[0]}"
        until(lambda: self.learned(fact) is not None, f"the use of {kind} to be seen", patience_s=SOON_S)
        time.sleep(5 * TERM_S / 3)  # the first beats were of its imports
        return [round(float(value), 2) for value in self.learned(fact)]

    def speeds(self, *names: str) -> dict[str, float]:
        """Steps per second of each, over the next seconds, in which all of them train."""
        self.trains(*names)
        time.sleep(2.0)
        begin = time.monotonic()
        until(
            lambda: time.monotonic() > begin + self.seconds and all(len(self._marks(name, begin)) > 2 for name in names),
            "steps enough",
        )
        found = {}
        for name in names:
            marks = self._marks(name, begin)
            (first, began), (last, ended) = marks[0], marks[-1]
            found[name] = (last - first) / (ended - began)
        if len(names) == 1:
            self.alone[self.kind[names[0]]] = found[names[0]]
        return found

    def tell(self, what: str, **more: Any) -> None:
        self.told.append({"what": what, "second": round(self.plane.live.now, 1), **more})
        print(f"{self.told[-1]['second']:7.1f} s  {what}: {json.dumps(more)}", flush=True)

    def _marks(self, name: str, begin: float) -> list[tuple[int, float]]:
        lines = [line.split() for line in self._printed(name).splitlines(keepends=True) if line.endswith("\n")]
        marks = [(int(line[0]), float(line[1])) for line in lines if len(line) == 2 and line[0].isdigit()]
        return [mark for mark in marks if mark[1] >= begin]

    def _printed(self, name: str) -> str:
        found = sorted((self.folder / "agent" / "jobs" / str(self.number[name])).glob("*/0/log/*"))
        return "".join(path.read_text(errors="replace") for path in found)


def play(stage: Stage) -> Iterator[str]:
    """The scenes, each as its name when it begins. Between them somebody is on the accelerator, so that who refuses company
    waits."""
    yield "a kind's speed and use alone"
    stage.submit("first", TOUCHY)
    stage.trains("first")
    seen = stage.use_is_known(TOUCHY)
    stage.tell(f"{TOUCHY} alone", steps_per_s=stage.speeds("first")["first"], use=seen)
    stage.cancel("first")

    yield "a belief is corrected"
    stage.submit("light", LIGHT)
    stage.trains("light")
    seen = stage.use_is_known(LIGHT)
    stage.speeds("light")
    stage.tell(f"{LIGHT} was believed to take {BELIEVED[LIGHT]}", seen=seen, steps_per_s=stage.alone[LIGHT])

    yield "two light ones"
    stage.submit("other-light", OTHER_LIGHT)
    stage.trains("light", "other-light")
    stage.submit("refuses", OTHER_LIGHT, max_slowdown=1.0)
    together = {"light and light": stage.speeds("light", "other-light")}
    stage.tell("who refuses company", phase=stage.phase("refuses"), why=stage.record("refuses").get("reason"))
    stage.cancel("light")
    stage.speeds("other-light")

    yield "a light and a heavy one"
    stage.submit("heavy", HEAVY)
    together["light and heavy"] = stage.speeds("other-light", "heavy")
    stage.cancel("other-light")
    stage.speeds("heavy")

    yield "two heavy ones"
    stage.submit("other-heavy", OTHER_HEAVY)
    together["heavy and heavy"] = stage.speeds("heavy", "other-heavy")
    stage.cancel("heavy")
    stage.speeds("other-heavy")
    for what, speeds in together.items():
        stage.tell(what, **_side_by_side(stage, speeds))

    yield "who refuses company is alone"
    stage.cancel("other-heavy")
    stage.trains("refuses")
    stage.submit("ballast", BESIDE_IT, hold_gb=BALLAST_GB, memory_gb=BALLAST_GB + 2)
    time.sleep(5.0)
    stage.tell("it runs, and who comes", phase=stage.phase("ballast"), why=stage.record("ballast").get("reason"))
    stage.cancel("refuses")
    stage.speeds("ballast")

    yield "company is parted"
    stage.submit("touchy", TOUCHY, max_slowdown=BEARS)
    if (predicted := _predicted(stage, TOUCHY, BESIDE_IT)) > BEARS:  # by what was seen of both here
        raise FairleadError(f"no company to part: {TOUCHY} is predicted {predicted} times slower and bears {BEARS}")
    until(lambda: stage.record("touchy")["preemptions"] > 0, "the touchy one to be parted", patience_s=SOON_S)
    remembered = stage.memo()["slower"]
    time.sleep(8.0)
    record = stage.record("touchy")
    stage.tell("parted", predicted=_predicted(stage, TOUCHY, BESIDE_IT), bears=BEARS, remembered=remembered,
               phase_8_s_later=record["phase"], starts=record["starts"])  # fmt: skip
    stage.cancel("touchy")

    yield "out of memory"
    stage.submit("greedy", LIGHT, hold_gb=GREEDY_GB, memory_gb=SAID_GB, steps=2000)
    until(lambda: stage.record("greedy")["failures"] > 0, "it to run out of memory", patience_s=SOON_S)
    until(lambda: bool((stage.memo() or {}).get("least_gb")), "its need to be raised", patience_s=SOON_S)
    time.sleep(4.0)
    failed = stage.record("greedy")
    stage.tell(
        "out of memory", said_gb=SAID_GB, needs_from_then_on=stage.memo()["least_gb"], phase=failed["phase"],
        why=failed.get("reason"), failure=failed.get("last_failure"),
    )  # fmt: skip
    stage.cancel("ballast")
    until(lambda: stage.phase("greedy") in ("finished", "failed"), "it to end", patience_s=SOON_S)
    stage.tell("and alone", phase=stage.phase("greedy"), starts=stage.record("greedy")["starts"])


def _side_by_side(stage: Stage, speeds: Mapping[str, float]) -> dict[str, Any]:
    """Measured and predicted slowdowns of two that share."""
    one, other = (stage.kind[name] for name in speeds)
    found = {}
    for kind, beside, speed in zip((one, other), (other, one), speeds.values()):
        predicted = _predicted(stage, kind, beside)
        found[f"{kind} beside {beside}"] = {"measured": round(stage.alone[kind] / speed, 2), "predicted": predicted}
    return found


def _predicted(stage: Stage, kind: str, beside: str) -> float:
    """By what is believed and was seen now."""
    with stage.plane.live.at_rest(SOON_S):
        view = stage.plane.loop.state.snapshot(stage.plane.live.now)
        company = ColocationModel(BELIEVED, profiles="h200")
        paired, *_ = company.colocated_rates(view, [kind, beside], np.ones((2, 1)))
    return round(float(1 / paired[0, 1, 0]), 2)


def stood(cluster: Cluster, events: list[ev.Event], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """From when to when who was on the accelerator, by the journal."""
    state, found, last = State(cluster), list[dict[str, Any]](), set[str]()
    for event in events:
        apply_event(state, event)
        now = {names[number] for number in state.snapshot(event.time).jobs.runners.number.tolist()}
        if now != last:
            found.append({"from_s": round(event.time, 1), "who": sorted(now)})
        last = now
    return found


@contextmanager
def staged(machine: str, folder: Path, seconds: float) -> Iterator[Stage]:
    (folder / "job.py").write_text(JOB)
    watched = {"name": "monitored", "profiles": "h200", "usage": {kind: list(use) for kind, use in BELIEVED.items()}}
    scheduler = SchedulerConfig.from_data({"policy": "horus", "estimator": watched, "rounds": 1})
    cluster = Cluster.parse(machine, accelerator_types())
    by_turns = {**os.environ, "PATH": "/nowhere"}  # so that the agent finds no MPS daemon; predictions are of taking turns
    with (
        plane_on(cluster, scheduler.to_data(), scheduler.build(None), TERM_S) as (plane, port),
        agent_of(plane, port, folder, by_turns),
    ):
        yield Stage(plane, folder, seconds)


def main() -> int:
    chosen = options_of(__doc__, "that speeds are looked at")
    machine, why_not = machine_or_why_not()
    if why_not:
        print(why_not, file=sys.stderr)
        return 2
    figures: dict[str, Any] = {"machine": machine}
    with (
        tempfile.TemporaryDirectory(prefix="company-") as name,  # short: sockets' names are
        staged(machine, Path(name), chosen.seconds) as stage,
    ):
        scene = ""
        try:
            for scene in play(stage):
                print(f"— {scene}", flush=True)
        except FairleadError as problem:
            figures["problem"] = f"{scene}: {problem}"
        names = {number: name for name, number in stage.number.items()}
        figures |= {
            "told": stage.told,
            "alone": stage.alone,
            "learned": dict(stage.plane.loop.state.observations),
            "stood": stood(stage.plane.cluster, list(stage.plane.journal.events), names),
        }
    for stretch in figures["stood"]:
        print(f"{stretch['from_s']:7.1f} s  {' and '.join(stretch['who']) or 'nobody'}")
    write_figures(figures, chosen.out)
    if "problem" in figures:
        print(figures["problem"], file=sys.stderr)
    return 1 if "problem" in figures else 0


if __name__ == "__main__":
    sys.exit(main())
