"""A job that runs with any number of workers and at any batch size from 64 to 1024: it fits a line. Each step is a batch that
the workers divide; they average gradients over a socket, as torch.distributed does. The job reports the time of its steps and
the noise of its gradients, which policies such as Pollux use to choose its number of workers.

    python examples/jobs/elastic.py --samples 20000 --sample-s 0.0005
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import fairlead

Numbers = list[float]


class Samples:
    """Numbers from 0 on, in batches of the size that the job has just then."""

    def __init__(self, count: int, work: fairlead.Elastic) -> None:
        self.count, self.work, self.used = count, work, 0

    @property
    def batch_size(self) -> int:
        return self.work.batch_size

    def __iter__(self) -> Iterator[range]:
        while self.used < self.count:
            batch = range(self.used, min(self.used + self.batch_size, self.count))
            self.used = batch.stop
            yield batch


class Gang:
    """All workers' numbers, added up, for each of them."""

    def __init__(self, rank: int, size: int) -> None:
        self.others: list[Connection] = []
        self.first: Connection | None = None
        where = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT") or 0))
        key = os.environ.get("FAIRLEAD_GANG_TOKEN", "by hand").encode()
        if rank:
            self.first = _found(where, key)
        elif size > 1:
            with Listener(where, authkey=key, backlog=size) as listener:
                self.others = [listener.accept() for _ in range(size - 1)]

    def added(self, mine: Numbers) -> Numbers:
        if self.first is not None:
            self.first.send(mine)
            return list(self.first.recv())
        total = [sum(each) for each in zip(mine, *(other.recv() for other in self.others))]
        for other in self.others:
            other.send(total)
        return total


def _found(where: tuple[str, int], key: bytes) -> Connection:
    for _ in range(600):
        try:
            return Client(where, authkey=key)
        except ConnectionRefusedError:  # the first worker is not there yet
            time.sleep(0.1)
    raise TimeoutError(f"nobody listens at {where}")


def gradient(line: Numbers, part: range) -> tuple[Numbers, float]:
    """Of the mean squared error over some samples, and that error."""
    slope, height, loss = 0.0, 0.0, 0.0
    for number in part:
        drawn = random.Random(number)
        place = drawn.uniform(-1, 1)
        off = line[0] * place + line[1] - (3 * place + 1 + drawn.gauss(0, 0.5))
        slope, height, loss = slope + 2 * off * place, height + 2 * off, loss + off * off
    count = max(len(part), 1)
    return [slope / count, height / count], loss / count


def main() -> None:
    options = argparse.ArgumentParser(description="fit a line with any number of workers")
    options.add_argument("--samples", type=int, default=200_000)
    options.add_argument("--batch-size", type=int, default=128)
    options.add_argument("--sample-s", type=float, default=0.001, help="how long a sample takes; a pass as 32 more")
    options.add_argument("--log", type=Path, help="append each step's samples, and who did it, to this file")
    chosen = options.parse_args()
    work = fairlead.elastic(chosen.batch_size, smallest=64, largest=1024, min_local=16, max_local=256)
    gang = Gang(work.rank, work.world_size)
    line, samples = [0.0, 0.0], Samples(chosen.samples, work)

    def save(folder: Path) -> None:
        (folder / "line.json").write_text(json.dumps({"line": line, "used": samples.used, "batch_size": work.batch_size}))

    def load(folder: Path) -> bool:
        state = json.loads((folder / "line.json").read_text())
        line[:], samples.used = state["line"], state["used"]
        if work.may_tune:
            work.batch_size = max(state["batch_size"], work.world_size * work.limits.min_local)
        return True

    lease = fairlead.lease(samples, load=load, save=save)
    for batch in lease:
        lease.batch_size = work.batch_size
        mine = [0.0, 0.0, 0.0, 0.0]  # both parts of the gradient, the squares of the passes' norms, the loss
        for part in work.parts(batch):
            with work.computing():
                slope, loss = gradient(line, part)
                time.sleep(chosen.sample_s * (32 + len(part)))
            mine = [have + new for have, new in zip(mine, [*slope, slope[0] ** 2 + slope[1] ** 2, loss])]
        count = work.world_size * work.accumulation_steps
        mean = [each / count for each in gang.added(mine)]
        line[0], line[1] = line[0] - 0.1 * mean[0], line[1] - 0.1 * mean[1]
        fairlead.report(loss=mean[3])
        work.stepped(parts_sqr=mean[2], whole_sqr=mean[0] ** 2 + mean[1] ** 2)
        if chosen.log:
            launch = os.environ.get("FAIRLEAD_GENERATION", "0")
            with chosen.log.open("a") as log:
                log.write(f"{batch.start} {batch.stop} {work.rank} {work.world_size} {launch}\n")
        if work.may_tune and (lease.steps + 1) % 20 == 0:
            best = gang.added([float(work.best_batch_size()) if work.rank == 0 else 0.0])  # the first worker's word
            work.batch_size = int(best[0])
    lease.exit_if_yielded()
    if work.rank == 0:
        print(f"{chosen.samples} samples in {lease.steps} steps: y = {line[0]:.2f} x + {line[1]:.2f}")


if __name__ == "__main__":
    main()
