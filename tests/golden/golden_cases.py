"""The golden cases: every policy and every preset on single-worker jobs and on gangs, and the digest of each event log.

As a program it prints or writes digests; `tests/golden/README.md` says how. A digest depends on the inputs and the seed only,
so it is the same on every machine, with every BLAS, and under every perturbation of `perturbation.py`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

DIGESTS = Path(__file__).parent / "digests.json"
DECISIONS = 2000
CLUSTER = "v100:4,p100:4,k80:4"


@dataclass(frozen=True, order=True)
class GoldenCase:
    """One scheduler on one workload of so many jobs."""

    kind: str  # policy or preset
    name: str
    workload: str  # single or gangs
    jobs: int = 0

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}, {self.workload}"

    def run(self) -> tuple[str, int]:
        """The digest of the event log, and the number of decisions."""
        from fairlead.api.scheduler import Scheduler
        from fairlead.config import SchedulerConfig
        from fairlead.engine.codec import encode_line
        from fairlead.engine.journal import MemoryJournal
        from fairlead.experiments.simulate import Simulation, run_simulation
        from fairlead.simulator.costs import Costs
        from fairlead.testing import cluster
        from fairlead.workloads.generate import Generator

        sizes = {"single": "single", "gangs": {1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1}}[self.workload]
        trace = Generator(
            jobs=self.jobs,
            jobs_per_hour=3.0,
            durations=(1200.0, 3000.0, 7000.0, 16000.0, 30000.0),
            workers=sizes,
            users=4,
            accounts={"lab": 0.6, "shop": 0.4},
            priorities=0.2,
            slos=(1.5, 4.0, 20.0),
            memory=True,
        ).trace(seed=5)
        scheduler = Scheduler(self.name, round_s=360.0).config if self.kind == "policy" else SchedulerConfig.preset(self.name)
        journal = MemoryJournal()
        run = run_simulation(
            Simulation(trace, cluster(CLUSTER), scheduler, costs=Costs(10.0, 20.0, 5.0), seed=5), journal=journal
        )
        digest = hashlib.sha256()
        for event in journal:
            digest.update(encode_line(event))
        return digest.hexdigest()[:32], run.loop.decisions


def all_cases() -> Iterator[GoldenCase]:
    """Every policy and preset of the package, with no number of jobs yet."""
    from fairlead.config.registry import Registry, presets

    policies = [one.name for one in Registry.installed().of("policy") if one.origin == "fairlead"]
    for workload in ("single", "gangs"):
        yield from (GoldenCase("policy", name, workload) for name in policies)
        yield from (GoldenCase("preset", name, workload) for name in presets())


def known_cases(path: Path = DIGESTS) -> dict[GoldenCase, str]:
    """The cases whose digests are written down."""
    return {GoldenCase(**one["case"]): one["digest"] for one in json.loads(path.read_text())}


def _sized(case: GoldenCase, decisions: int) -> tuple[GoldenCase, str, int]:
    """The case with as many jobs as make enough decisions."""
    jobs = 24
    while True:
        sized = GoldenCase(case.kind, case.name, case.workload, jobs)
        digest, made = sized.run()
        if made >= decisions:
            return sized, digest, made
        jobs = max(jobs + 20, int(jobs * 1.1 * decisions / max(made, 1)))


def write(cases: Iterable[GoldenCase], path: Path, decisions: int) -> None:
    """Size and run the cases, and write their digests down."""
    with ProcessPoolExecutor() as pool:
        rows = []
        for case, digest, made in pool.map(_sized, cases, [decisions] * 1000):
            rows.append({"case": vars(case), "digest": digest, "decisions": made})
            print(case.key, case.jobs, made, digest, flush=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def differing(cases: dict[GoldenCase, str]) -> list[str]:
    """The keys of the cases whose digest is another now."""
    wrong = []
    for case, digest in cases.items():
        found = case.run()[0]
        print("same" if found == digest else "DIFFERS", case.key, flush=True)
        if found != digest:
            wrong.append(case.key)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the digests down anew")
    parser.add_argument("--only", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--perturb", default="", help="a perturbation: see perturbation.py")
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--file", type=Path, default=DIGESTS)
    given = parser.parse_args()
    if given.perturb:
        import perturbation

        perturbation.install(given.perturb)

    def wanted(case: GoldenCase) -> bool:
        return not given.only or any(part in case.key for part in given.only)

    if given.write:
        write([case for case in all_cases() if wanted(case)], given.file, given.decisions)
    else:
        sys.exit(1 if differing({c: d for c, d in known_cases(given.file).items() if wanted(c)}) else 0)


if __name__ == "__main__":
    main()
