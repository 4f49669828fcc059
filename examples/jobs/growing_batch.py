"""A job that doubles its batch size while it trains, as adaptive training does, and announces it. The scheduler sees the
change with the next step, and policies such as Shockwave plan with it.

    python examples/jobs/growing_batch.py --samples 20000 --step-s 0.05
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import fairlead


class Samples:
    """So many samples, in batches of a size that may change between any two of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.batch_size = 32
        self.used = 0

    def __iter__(self) -> Iterator[range]:
        while self.used < self.count:
            batch = range(self.used, min(self.used + self.batch_size, self.count))
            self.used = batch.stop
            yield batch


def main() -> None:
    options = argparse.ArgumentParser(description="train with a batch size that grows")
    options.add_argument("--samples", type=int, default=20_000)
    options.add_argument("--step-s", type=float, default=0.01)
    options.add_argument("--largest", type=int, default=512)
    options.add_argument("--double-every", type=int, default=20, help="steps")
    options.add_argument("--log", type=Path, help="append each batch's first and last sample to this file")
    chosen = options.parse_args()
    samples = Samples(chosen.samples)

    def save(folder: Path) -> None:
        (folder / "samples.json").write_text(json.dumps({"used": samples.used, "batch_size": samples.batch_size}))

    def load(folder: Path) -> bool:
        state = json.loads((folder / "samples.json").read_text())
        samples.used, samples.batch_size = state["used"], state["batch_size"]
        return True  # the samples are where they were; nothing is to be skipped

    lease = fairlead.lease(samples, load=load, save=save)
    for batch in lease:
        lease.batch_size = samples.batch_size
        time.sleep(chosen.step_s)
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(f"{batch.start} {batch.stop - 1}\n")
        if (lease.steps + 1) % chosen.double_every == 0:
            samples.batch_size = min(2 * samples.batch_size, chosen.largest)
            lease.batch_size = samples.batch_size
    lease.exit_if_yielded()
    print(f"{chosen.samples} samples in {lease.steps} steps, the last batch size was {samples.batch_size}")


if __name__ == "__main__":
    main()
