"""Ten trainings on one GPU under `fairlead up` with Horus. Their predictions are all that the scheduler knows: none of these
configurations was ever measured.

python -m fairlead_papers.prediction.predicted_cluster --cluster 1xh200:1 --out ten.json

Each job is submitted with `fairlead submit --prediction` and `max_slowdown`. The journal says which jobs shared the GPU, which
were slower than allowed, and how long it took until they were separated. `--understate` divides the predicted utilizations, so
that more jobs are too slow: it shows how false predictions are repaired."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.core.events import (
    Event,
    JobsFailed,
    JobsFinished,
    JobsInterrupted,
    JobSubmitted,
    ProgressReported,
    RoundPlanned,
    SlowdownExceeded,
)
from fairlead.journal.recovery import read_journal

TRAININGS = (
    "bert-base@256:8/bf16",
    "llama-60m@512:8/bf16",
    "mixtral-200m@256:8/pure",
    "mamba-384x6@128:4/bf16",
    "lstm-512x1@64:32/bf16",
    "dlrm-50x32@26:2048/bf16",
    "gcn-128x3@20000:1/bf16",
    "t5-small@128:16/bf16",
    "whisper-tiny@32:8/bf16",
    "gpt2@512:4/bf16",
)
JOB = """import sys
from pathlib import Path

import fairlead
from fairlead_papers.prediction.trainings import entry

NAME = {name!r}


def training():
    return entry(NAME).make()


if __name__ == "__main__":
    import torch

    from fairlead_papers.prediction.measure_steps import DeviceStep

    made = DeviceStep(NAME, sys.argv[2])

    def save(folder: Path) -> None:
        torch.save(made.training.model.state_dict(), folder / "model.pt")

    def load(folder: Path) -> None:
        made.training.model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))

    lease = fairlead.lease(range(int(sys.argv[1])), load=load, save=save)
    for _ in lease:
        made.step()
        made.finish()
    lease.exit_if_yielded()
"""


def main() -> None:
    """Run the ten jobs, and print or write what the journal says."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cluster", default="1xh200:1", help="this machine's GPUs")
    options.add_argument("--trainings", default=",".join(TRAININGS), help="names of trainings, separated by commas")
    options.add_argument("--alone-s", type=float, default=40.0, help="seconds that each job needs alone, by its prediction")
    options.add_argument("--round", type=float, default=10.0, help="length of a round in seconds")
    options.add_argument("--max-slowdown", type=float, default=1.5)
    options.add_argument("--host-launch-us", type=float, help="as `fairlead profile host` measures it on this host")
    options.add_argument("--understate", type=float, default=1.0, help="divide predicted utilizations by this")
    options.add_argument("--patience", type=float, default=420.0, help="seconds after which jobs are given up")
    options.add_argument("--device", default="cuda", help="where jobs train")
    options.add_argument("--root", type=Path, default=Path("predicted-cluster"))
    options.add_argument("--out", type=Path, help="write the result there, as JSON")
    chosen = options.parse_args()
    names = chosen.trainings.split(",")
    shutil.rmtree(chosen.root, ignore_errors=True)
    predictions = predict_jobs(names, chosen.root, chosen.host_launch_us, chosen.understate)
    run_jobs(names, predictions, chosen)
    result = summary(read_journal(str(chosen.root / ".fairlead" / "journal.sqlite")), names)
    result |= {"max_slowdown": chosen.max_slowdown, "round_s": chosen.round, "understate": chosen.understate}
    text = json.dumps(result, indent=1)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")
    print(text)


def predict_jobs(
    names: Iterable[str], root: Path, host_launch_us: float | None = None, understate: float = 1.0
) -> list[dict[str, Any]]:
    """Write a script for each training, predict it with `fairlead predict module`, and write the prediction beside it."""
    tracing: list[tuple[Path, subprocess.Popen[bytes]]] = []
    for number, name in enumerate(names):
        folder = root / f"job{number}"
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(JOB.format(name=name))
        command = _fairlead("predict", "module", str(folder / "train.py:training"), "--json")
        command += [] if host_launch_us is None else ["--host-launch-us", str(host_launch_us)]
        with (folder / "prediction.json").open("wb") as out:
            tracing.append((folder, subprocess.Popen(command, stdout=out)))
    found = []
    for folder, process in tracing:
        if process.wait():
            raise SystemExit(f"{folder}: the training was not predicted")
        data = json.loads((folder / "prediction.json").read_text())
        for field in ("utilization", "utilization_low", "utilization_high"):
            data[field] /= understate
        (folder / "prediction.json").write_text(json.dumps(data))
        found.append(data)
    return found


def run_jobs(names: list[str], predictions: list[dict[str, Any]], chosen: argparse.Namespace) -> None:
    """Start a cluster, submit the jobs, wait until they have ended, and end the cluster."""
    root = chosen.root.resolve()
    up = _fairlead("up", "--cluster", chosen.cluster, "--policy", "horus", "--estimator", "monitored", "--http", "127.0.0.1:0")
    up += ["--agents", "127.0.0.1:0", "--round", str(chosen.round)]
    with (root / "up.log").open("wb") as log:
        cluster = subprocess.Popen(up, cwd=root, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + chosen.patience
        while subprocess.run(_fairlead("nodes"), cwd=root, capture_output=True).returncode:
            if time.monotonic() > deadline or cluster.poll() is not None:
                raise SystemExit((root / "up.log").read_text())
            time.sleep(0.5)
        for number, (name, about) in enumerate(zip(names, predictions, strict=True)):
            folder, steps = root / f"job{number}", max(1, round(about["steps_per_s"] * chosen.alone_s))
            limits = ["--max-slowdown", str(chosen.max_slowdown), "--steps", str(steps), "--dir", str(folder)]
            passed = [f"--env={one}" for one in ("PYTHONPATH", "LD_LIBRARY_PATH", "HF_HUB_OFFLINE") if one in os.environ]
            task = ["--name", f"job{number}", "--prediction", str(folder / "prediction.json"), *limits, *passed]
            done = subprocess.run(
                _fairlead("submit", *task, "--", sys.executable, "train.py", str(steps), chosen.device), cwd=root
            )
            if done.returncode:
                raise SystemExit(f"{name} was not submitted")
        waiting = _fairlead("wait", *(f"job{number}" for number in range(len(names))))
        subprocess.run(waiting, cwd=root, timeout=max(1.0, deadline - time.monotonic()))
        for number in range(len(names)):
            subprocess.run(_fairlead("info", f"job{number}"), cwd=root)
    finally:
        cluster.send_signal(signal.SIGINT)
        cluster.wait(timeout=60)


def summary(events: Iterable[Event], names: list[str]) -> dict[str, Any]:
    """What a journal says about jobs that shared GPUs."""
    jobs: dict[int, dict[str, Any]] = {}
    held: dict[int, set[int]] = {}
    shared_s = busy_s = now = 0.0
    exceeded: list[dict[str, Any]] = []
    failures: list[str] = []
    for event in events:
        gpus: list[int] = [gpu for mine in held.values() for gpu in mine]
        busy_s += (event.time - now) * len(set(gpus))
        shared_s += (event.time - now) * len({gpu for gpu in gpus if gpus.count(gpu) > 1})
        now = event.time
        match event:
            case JobSubmitted(number=number, job=job):
                jobs[number] = {"name": names[number], "submitted_s": now, "prediction": json.loads(job.prediction)}
            case RoundPlanned(plan=plan):
                for number in (*plan.suspended.tolist(), *plan.ended.tolist()):
                    held.pop(number, None)
                starts, places = plan.launches.offsets.tolist(), plan.launches.accelerators.tolist()
                for number, first, last in zip(plan.launches.jobs.tolist(), starts, starts[1:], strict=False):
                    held[number] = set(places[first:last])
                    jobs[number].setdefault("started_s", []).append(now)
                _note_separated(exceeded, held, now)
            case ProgressReported():
                for number, rate in zip(event.jobs.tolist(), event.rates.tolist(), strict=True):
                    alone = not any(held.get(number, set()) & mine for other, mine in held.items() if other != number)
                    jobs[number].setdefault("rates_alone" if alone else "rates_shared", []).append(rate)
            case SlowdownExceeded():
                for number, slowdown in zip(event.jobs.tolist(), event.slowdowns.tolist(), strict=True):
                    others = [other for other, mine in held.items() if other != number and mine & held.get(number, set())]
                    seen = {"job": number, "with": others, "slowdown": slowdown, "seen_s": now}
                    if not any((one["job"], one["with"]) == (number, others) and "separated_s" not in one for one in exceeded):
                        exceeded.append(seen)
                _note_separated(exceeded, held, now)
            case JobsFinished():
                for number, at in zip(event.jobs.tolist(), event.at.tolist(), strict=True):
                    jobs[number]["finished_s"] = at
                    held.pop(number, None)
                _note_separated(exceeded, held, now)
            case JobsFailed() | JobsInterrupted():
                failures.append(f"{event.why} {event.jobs.tolist()}")
                for number in event.jobs.tolist():
                    held.pop(number, None)
    return {"jobs": jobs, "busy_s": busy_s, "shared_s": shared_s, "exceeded": exceeded, "failures": failures}


def _note_separated(exceeded: Iterable[dict[str, Any]], held: Mapping[int, set[int]], now: float) -> None:
    for one in exceeded:
        together = any(held.get(one["job"], set()) & held.get(other, set()) for other in one["with"])
        if "separated_s" not in one and not together:
            one["separated_s"] = now - one["seen_s"]


def _fairlead(*words: str) -> list[str]:
    return [sys.executable, "-m", "fairlead.cli.main", *words]


if __name__ == "__main__":
    main()
