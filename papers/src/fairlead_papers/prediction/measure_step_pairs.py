"""Measure pairs of trainings of `trainings` on one GPU, by time slicing or through MPS: the speed of both together, and of each
alone just before or after.

python -m fairlead_papers.prediction.measure_step_pairs --out pairs.jsonl --sharing mps --budget 340

A line is written after each pair; the same command again continues."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.profiling.pair_selection import measurement_plan
from fairlead.profiling.profile_pairs import PairBench, PairTiming
from fairlead.profiling.results import ResultsFile
from fairlead.profiling.sharing_mode import SharingMode, in_sharing_mode
from fairlead_papers.prediction.measure_steps import DeviceStep, about_host, run_apart

PAIRED = (
    "detr-resnet18@256:4/fp32",
    "mamba-256x4@128:4/fp32",
    "mobilenetv3_small_100@224:32/bf16",
    "llama-150m@512:8/bf16",
    "dlrm-20x32@26:2048/bf16",
    "regnety_016@224:32/fp32",
    "gcn-64x3@10000:1/fp32",
    "wav2vec2-base@80000:8/bf16",
    "swin_tiny_patch4_window7_224@224:64/bf16",
    "clip-b32@77:16/fp32",
    "gat-32x2@10000:1/fp32",
    "whisper-tiny@64:4/fp32",
    "gpt2@256:4/fp32",
    "bert-base@128:8/fp32",
    "mixer_s32_224@224:64/fp32",
    "resnet50@224:64/bf16",
    "vit_base_patch16_224@224:64/bf16",
)
"""Trainings of as many families that `pair_selection` chose: in even steps of utilization, from 20 to 99 %, each with at most
6 GB and at least 15 steps per second on an H200."""
TIMING = PairTiming(alone_s=0.15, window_s=0.3)


def measure_pairs(
    names: Sequence[str], to: Path, sharing: SharingMode, budget_s: float, device: str, timing: PairTiming = TIMING
) -> ResultsFile:
    """Measure each training alone and all pairs, as far as the file does not have them yet."""
    began = time.monotonic()
    about = run_apart(about_host, device, seconds=120.0)
    if isinstance(about, str):
        raise SystemExit(f"the device cannot be used: {about}")
    about |= {"sharing": sharing.value, "looks": timing.repetitions, "steps": timing.steps}
    about |= {"warm_s": timing.warm_s, "alone_s": timing.alone_s, "window_s": timing.window_s}
    results = ResultsFile(to, about, ("device", "sharing"))
    asked = measurement_plan(names, known=results.known)
    if not asked:
        return results
    with in_sharing_mode(sharing), PairBench(names, device, timing, DeviceStep) as bench:
        print(f"{len(names)} trainings after {time.monotonic() - began:.0f} s; {bench.problems or 'all can run'}", flush=True)
        fit = [one for one in asked if bench.problems.keys().isdisjoint(one.of)]
        for number, one in enumerate(fit, 1):
            if (passed := time.monotonic() - began) > budget_s:
                print(f"the budget of {budget_s:.0f} s is used up before {one.name}", flush=True)
                break
            found = bench.alone(*one.of) if len(one.of) == 1 else bench.together(*one.of)
            results.add({**found, "name": one.name, "session": results.session})
            print(f"{number}/{len(fit)} {passed:.0f} s {one.name}: {_short(found)}", flush=True)
    return results


def _short(row: dict[str, Any]) -> str:
    if "pair" not in row or "problem" in row:
        return str(row.get("problem", row.get("steps_per_s")))
    slower = [alone / both for alone, both in zip(row["undisturbed_steps_per_s"], row["steps_per_s"])]
    return f"slowdown {slower[0]:.2f}, {slower[1]:.2f} in {row['took_s']:.1f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure pairs of trainings on one GPU.")
    parser.add_argument("--out", type=Path, required=True, help="file of results; what it has is not measured again")
    parser.add_argument("--of", default=",".join(PAIRED), help="names of trainings, separated by commas")
    parser.add_argument("--sharing", type=SharingMode, default=SharingMode.TIME_SLICING, choices=[*SharingMode])
    parser.add_argument("--budget", type=float, default=340.0, help="seconds after which no measurement starts")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    known = measure_pairs(given.of.split(","), given.out, given.sharing, given.budget, given.device).known
    pairs = [row for row in known.values() if "pair" in row]
    failed = [row["name"] for row in known.values() if "problem" in row]
    print(f"{len(pairs)} pairs measured, failed: {', '.join(failed) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
