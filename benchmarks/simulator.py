"""How fast the simulator is: CPU seconds and memory of whole runs, and microseconds of a single round.

    python benchmarks/simulator.py                 # all, a table
    python benchmarks/simulator.py --json          # the same as one JSON object
    python benchmarks/simulator.py --profile las   # where the time of one run goes
    python benchmarks/simulator.py --scale         # 100,000 jobs on 10,000 GPUs of four types instead

Runs are whole processes (start-up, reading the trace, placement, event log on disk and summary included), one at a time.
The Philly trace and Gavel's trace and table are read from `../shared/data` where they lie there; without them, generated
workloads of the same size stand in, and the table says so.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from fairlead.cli.main import app
from fairlead.workloads.formats import write_trace
from fairlead.workloads.generate import Generator

DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
POLICIES = ("fifo", "srtf", "las", "tiresias")
LIMIT_CPU_S, LIMIT_MB, LIMIT_ROUND_US = 20.0, 1000.0, 200.0
SCALE_POLICIES, SCALE_LIMIT_CPU_S = ("las", "max-min-fairness-perf"), 90.0
SCALE = ["--jobs", "100000", "--load", "800", "--cluster", "2500xk80:8,2500xp100:8,2500xv100:8,2500xa100:8", "--round", "360"]


def philly(folder: Path) -> tuple[str, list[str]]:
    """82,247 jobs on 50 nodes of 8, five-minute rounds."""
    path = DATA / "philly" / "philly.csv"
    common = ["--cluster", "400xv100:8", "--round", "300"]
    if path.is_file():
        return "Philly, 82,247 jobs", ["--trace", str(path), "--format", "philly", *common]
    made = folder / "large.csv"
    write_trace(Generator(jobs=82_247, jobs_per_hour=31.5, workers="multiple").trace(0), made)
    return "generated, 82,247 jobs", ["--trace", str(made), *common]


def gavel(folder: Path) -> tuple[str, list[str]]:
    """About 45 active jobs on 36 + 36 + 36 accelerators of three types, six-minute rounds."""
    trace, table = DATA / "gavel" / "continuous_single_seed0_lam900.trace", DATA / "gavel" / "simulation_throughputs.json"
    common = ["--cluster", "36xv100:4,36xp100:4,36xk80:4", "--round", "360"]
    if trace.is_file():
        return "Gavel, 2,000 jobs", ["--trace", str(trace), "--throughputs", str(table), *common]
    made = folder / "single.csv"
    write_trace(Generator(jobs=2000, jobs_per_hour=4.0).trace(0), made)
    return "generated, 2,000 jobs", ["--trace", str(made), *common]


def run(policy: str, arguments: list[str], events: Path) -> dict[str, float]:
    """One whole process; its CPU seconds as the operating system counts them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fairlead.cli.main", "simulate", "--policy", policy, *arguments]
    done = subprocess.run([*command, "--events", str(events), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary: dict[str, float] = json.loads(done.stdout)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**summary, "cpu_s": cpu, "log_mb": events.stat().st_size / 1e6}


def profile(policy: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, arguments = philly(Path(folder))
        watch = cProfile.Profile()
        watch.enable()
        app(["simulate", "--policy", policy, *arguments, "--events", f"{folder}/e.jsonl", "--json"], standalone_mode=False)
        watch.disable()
        pstats.Stats(watch).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", metavar="POLICY", choices=POLICIES)
    parser.add_argument("--scale", action="store_true", help="100,000 jobs on 10,000 GPUs of four types")
    chosen = parser.parse_args()
    if chosen.profile:
        profile(chosen.profile)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        large, policies, limit_s = philly(Path(folder)), POLICIES, LIMIT_CPU_S
        if chosen.scale:
            large, policies, limit_s = ("generated, 100,000 jobs", SCALE), SCALE_POLICIES, SCALE_LIMIT_CPU_S
        for policy in policies:
            found = run(policy, large[1], events)
            good = found["cpu_s"] <= limit_s and found["peak_rss_mb"] <= LIMIT_MB
            rows.append({"workload": large[0], "policy": policy, "good": good, **found})
        for name, arguments in () if chosen.scale else (gavel(Path(folder)),):
            for policy in POLICIES:
                for rounds in ("--skip-quiet-rounds", "--every-round"):
                    found = run(policy, [*arguments, rounds], events)
                    good = 1e6 * found["wall_s"] / found["rounds"] <= LIMIT_ROUND_US
                    rows.append({"workload": f"{name} {rounds}", "policy": policy, "good": good, **found})
    if chosen.json:
        print(json.dumps({"runs": rows}))
        return
    print(f"{'workload':44} {'policy':10} {'CPU s':>7} {'MB':>6} {'rounds':>7}", end="")
    print(f" {'µs each':>8} {'decided':>8} {'µs each':>8} {'log MB':>7}")
    for row in rows:
        per_round, per_decision = (1e6 * row["wall_s"] / row[name] for name in ("rounds", "decisions"))
        mark = "" if row["good"] else "  above the limit"
        line = f"{row['workload']:44} {row['policy']:10} {row['cpu_s']:7.1f} {row['peak_rss_mb']:6.0f} {row['rounds']:7.0f}"
        print(f"{line} {per_round:8.0f} {row['decisions']:8.0f} {per_decision:8.0f} {row['log_mb']:7.1f}{mark}")
    print(f"limits: {limit_s:g} CPU s and {LIMIT_MB:g} MB for a large run, {LIMIT_ROUND_US:g} µs a round for the small one")


if __name__ == "__main__":
    main()
