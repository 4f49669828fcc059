"""Jobs that change while they train, for tests of what foresees them: drawn here, or those of the public traces where these lie
beside the clone. And how wrong a rule is about them, throughout their training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.rng import stream
from fairlead.policies.shockwave.planning.regime_forecast import Rule, even_prior, next_batch_sizes, remaining_epochs, run_time

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "shockwave"


@dataclass(frozen=True)
class Trajectory:
    """Mode and limit are declared; regimes are (batch size, epochs, seconds an epoch) and nobody's to see."""

    mode: str
    limit: int
    regimes: tuple[tuple[int, int, float], ...]
    epoch_s: dict[int, float]  # by batch size

    @property
    def epochs(self) -> int:
        return sum(epochs for _, epochs, _ in self.regimes)

    @property
    def run_s(self) -> float:
        return sum(epochs * seconds for _, epochs, seconds in self.regimes)

    def seen(self, epoch: int) -> list[tuple[int, int]]:
        """Batch size and epochs of each regime so far."""
        past, left = [], epoch
        for size, epochs, _ in self.regimes:
            past.append((size, min(epochs, left)))
            left -= epochs
            if left < 0:
                break
        return past


def drawn(jobs: int, seed: int) -> list[Trajectory]:
    """Half Accordion, half GNS. GNS: the noise scale's logarithm is a random walk upward, and each doubling doubles the
    batch. Accordion: small while gradients change, through the first part of the training, and again after a decay of the
    learning rate."""
    rng = stream(seed, "trajectories")
    found = []
    for number in range(jobs):
        steps = int(rng.integers(1, 5))
        first = int(rng.choice([8, 16, 32]))
        sizes = [first << k for k in range(steps + 1)]
        speedup = float(rng.uniform(1.1, 1.8))
        seconds = {size: float(60.0 / speedup**k) for k, size in enumerate(sizes)}
        epochs = int(rng.integers(20, 300))
        if number % 2:
            pace = (steps + 1) / epochs * float(rng.uniform(0.7, 1.4))
            noise = np.cumsum(rng.normal(pace, 0.5 * np.sqrt(pace / epochs), epochs))
            level = np.minimum(np.maximum.accumulate(np.floor(np.maximum(noise, 0))).astype(int), steps)
        else:
            level = np.where(np.arange(epochs) < epochs * rng.uniform(0.2, 0.5), 0, steps)
            if rng.random() < 0.15:
                decay = int(epochs * rng.uniform(0.6, 0.8))
                level[decay : decay + max(epochs // 20, 2)] = 0
        starts = np.flatnonzero(np.diff(level, prepend=-1))
        lasts = np.diff(starts, append=epochs)
        regimes = tuple((sizes[level[s]], int(n), seconds[sizes[level[s]]]) for s, n in zip(starts, lasts))
        found.append(Trajectory("gns" if number % 2 else "accordion", sizes[-1], regimes, seconds))
    return found


def of_trace(name: str) -> list[Trajectory]:
    """The Accordion and GNS jobs of a public trace. A mode's limit is the largest batch size that jobs of the model and
    mode use, and epoch times at sizes that a job never reaches are those of its model."""
    jobs = [job for job in json.loads((TRACES / f"{name}_regimes.json").read_text()) if job["mode"] != "static"]
    seconds: dict[tuple[str, int, int], float] = {}
    limits: dict[tuple[str, str], int] = {}
    for job in jobs:
        model = job["job_type"].split(" (")[0]
        for regime in job["regimes"]:
            seconds[model, job["workers"], regime["batch_size"]] = regime["seconds_per_epoch"]
            limits[model, job["mode"]] = max(limits.get((model, job["mode"]), 0), regime["batch_size"])
    found = []
    for job in jobs:
        model = job["job_type"].split(" (")[0]
        regimes = tuple((r["batch_size"], r["epochs"], r["seconds_per_epoch"]) for r in job["regimes"])
        known = {size: s for (m, workers, size), s in seconds.items() if (m, workers) == (model, job["workers"])}
        for size in next_batch_sizes(job["mode"], regimes[0][0], limits[model, job["mode"]]):
            known.setdefault(size, known[max(k for k in known if k < size)])
        found.append(Trajectory(job["mode"], limits[model, job["mode"]], regimes, known))
    return found


@dataclass(frozen=True)
class Errors:
    shares: (
        float  # mean over jobs, training and the job's own regimes of |forecast − true| share; others that were foreseen count
    )
    run_time: float  # mean of |forecast − true| / true run time
    run_time_of_several: float  # the same over jobs of several regimes


def errors(rule: Rule, jobs: Sequence[Trajectory], points: int = 10) -> Errors:
    """Forecasts are made at even points of each job's training, from 0 % on."""
    shares, times, several = [], [], []
    for job in jobs:
        rows = [_at(rule, job, int(job.epochs * point / points)) for point in range(points)]
        share, time = np.mean(rows, axis=0)
        shares.append(share)
        times.append(time)
        if len(job.regimes) > 1:
            several.append(time)
    return Errors(float(np.mean(shares)), float(np.mean(times)), float(np.mean(several)))


def _at(rule: Rule, job: Trajectory, epoch: int) -> tuple[float, float]:
    past = job.seen(epoch)
    sizes = [size for size, _ in past] + list(next_batch_sizes(job.mode, past[-1][0], job.limit))
    width = max(len(sizes), len(job.regimes))
    trained = _row([epochs for _, epochs in past], width)
    seconds = _row([job.epoch_s[size] for size in sizes], width)
    epochs, current = np.array([float(job.epochs)]), np.array([len(past) - 1])
    expected = rule(epochs, trained, current, even_prior(np.array([len(sizes)]), width))
    true = _row([epochs for _, epochs, _ in job.regimes], width)
    share = np.abs(expected - true).sum() / job.epochs / len(job.regimes)
    total = run_time(trained, seconds) + run_time(remaining_epochs(expected, epochs, trained, current), seconds)
    return float(share), float(abs(total[0] - job.run_s) / job.run_s)


def _row(values: Sequence[float], width: int) -> Floats:
    return np.array([[*values, *([0.0] * (width - len(values)))]])
