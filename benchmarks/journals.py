"""How fast journals are: durable commits, and recovery of a large journal with and without a snapshot.

    python benchmarks/journals.py                  # 100,000 jobs; JSON lines, SQLite, and PostgreSQL where it is installed
    python benchmarks/journals.py --jobs 20000
    python benchmarks/journals.py --json           # the same as one JSON object

Recovery is timed in a process of its own, from opening the journal to the state after its last event; the journal has a whole
run of the simulator in it, and the snapshot is followed by the last twentieth of it. PostgreSQL is a server that the benchmark
starts for itself, with the durability it has by default. A bare `fsync` is measured too: no commit can be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fairlead.config.clusters import read_cluster
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.events import Event, JobSubmitted, JournalOpened
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import save
from fairlead.journal.recovery import open_journal
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.simulator.backend import SimulatedBackend
from fairlead.workloads.catalogue import accelerator_types, catalogue
from fairlead.workloads.generate import Generator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from fairlead.engine.apply import replay_events
from postgres_server import PostgresServer

LIMIT_RECOVERY_S = 10.0
BATCHES = (1, 50)
MEASURE_S = 3.0

RECOVER = """
import sys, time
from fairlead.journal.recovery import open_journal
from fairlead.journal.recovery import recover
began = time.perf_counter()
state, last = recover(open_journal(sys.argv[1]))
print(time.perf_counter() - began, state.digest())
"""


def run_of(jobs: int) -> list[Event]:
    """All that happens to so many jobs on 50 nodes of 8, five-minute rounds."""
    cluster, journal = read_cluster("400xv100:8", accelerator_types()), MemoryJournal()
    table = catalogue().for_types(cluster.type_names)
    trace = Generator(jobs=jobs, jobs_per_hour=11.0, workers="multiple").trace(0)
    stages = SchedulerConfig.from_data({"policy": "las", "rounds": 300}).build(table)
    loop = Loop(State(cluster), SimulatedBackend(cluster, table, trace.jobs), stages, journal=journal)
    loop.record(JournalOpened(0.0, cluster, {"policy": "las"}, trace.name))
    loop.run()
    return journal.events


def fill(where: str, events: Sequence[Event], state: State | None = None) -> None:
    journal = open_journal(where)
    if state is not None and isinstance(journal, DatabaseJournal):
        journal.snapshot(state)
    for number, event in enumerate(events, 1):
        journal.append(event)
        if number % 1000 == 0:
            journal.commit()
    journal.close()


def recovery_s(where: str, expected: State) -> float:
    done = subprocess.run([sys.executable, "-c", RECOVER, where], capture_output=True, text=True, check=True)
    seconds, digest = done.stdout.split()
    if digest != expected.digest():
        raise AssertionError(f"{where}: the recovered state is another one")
    return float(seconds)


def appends_per_s(where: str, submissions: Sequence[Event], batch: int) -> float:
    """Durably acknowledged events a second."""
    journal, count, began = open_journal(where), 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < MEASURE_S:
        for _ in range(batch):
            journal.append(submissions[count % len(submissions)])
            count += 1
        journal.commit()
    journal.close()
    return count / passed


def syncs_per_s(folder: Path) -> float:
    count, began = 0, time.perf_counter()
    with open(folder / "sync", "wb", buffering=0) as file:
        while (passed := time.perf_counter() - began) < MEASURE_S:
            file.write(bytes(200))
            os.fsync(file.fileno())
            count += 1
    return count / passed


def measure(kind: str, place: Callable[[str], str], size: Callable[[str], int], events: list[Event]) -> dict[str, Any]:
    row: dict[str, Any] = {"journal": kind}
    submissions = [event for event in events if isinstance(event, JobSubmitted)]
    for batch in BATCHES:
        row[f"events/s in commits of {batch}"] = appends_per_s(place(f"commits{batch}"), submissions, batch)
    where, tail = place("run"), len(events) - len(events) // 20
    before, after = replay_events(events[:tail]), replay_events(events)
    fill(where, events[:tail])
    row["MB"] = size(where) / 1e6
    row["recovery, s"] = recovery_s(where, before)
    if kind != "jsonl":
        fill(where, events[tail:], before)
        row["recovery with a snapshot, s"] = recovery_s(where, after)
        row["snapshot, MB"] = len(save(before)) / 1e6
    return row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=100_000)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    events = run_of(given.jobs)
    state = replay_events(events)
    began = time.perf_counter()
    save(state)
    about = {"jobs": given.jobs, "events": len(events), "saving a state, s": time.perf_counter() - began}
    rows = []
    with ExitStack() as stack:
        Path("out").mkdir(exist_ok=True)  # on a disk, where the folder for temporary files may be memory
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="out")))
        about["fsyncs/s"] = syncs_per_s(folder)
        for kind in ("jsonl", "sqlite"):
            rows.append(
                measure(kind, lambda name, kind=kind: f"{folder}/{name}.{kind}", lambda at: Path(at).stat().st_size, events)
            )
        if (missing := PostgresServer.missing()) is None:
            server = stack.enter_context(PostgresServer())
            urls: dict[str, str] = {}
            rows.append(measure("postgres", lambda name: urls.setdefault(name, server.database()), server.size, events))
        else:
            print(missing, file=sys.stderr)
    if given.json:
        print(json.dumps({**about, "journals": rows}))
        return
    print(", ".join(f"{name}: {value:,.6g}" for name, value in about.items()))
    for row in rows:
        print(f"{row['journal']:10s}" + "".join(f"  {name}: {value:,.4g}" for name, value in row.items() if name != "journal"))
    worst = max(row.get("recovery with a snapshot, s", 0.0) for row in rows)
    print(f"recovery with a snapshot: at most {worst:.1f} s, limit {LIMIT_RECOVERY_S:.0f} s")


if __name__ == "__main__":
    main()
