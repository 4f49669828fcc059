"""The smallest job: it counts. With --log it writes every step to a file, to show that each step was done once.

python examples/jobs/count.py --steps 100 --step-s 0.1 --log steps.txt
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import fairlead


def main() -> None:
    options = argparse.ArgumentParser(description="count, one number a step")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--step-s", type=float, default=0.0, help="how long a step takes")
    options.add_argument("--paced", action="store_true", help="a step waits for a byte on standard input")
    options.add_argument("--log", type=Path, help="append each step's number to this file")
    options.add_argument("--save-every", type=int, default=0, help="save after so many steps, besides when leaving")
    options.add_argument("--directory", type=Path, help="where checkpoints go outside Fairlead")
    chosen = options.parse_args()
    total = 0

    def save(folder: Path) -> None:
        (folder / "total").write_text(str(total))

    def load(folder: Path) -> None:
        nonlocal total
        total = int((folder / "total").read_text())

    lease = fairlead.lease(range(chosen.steps), load=load, save=save, every_steps=chosen.save_every, directory=chosen.directory)
    for number in lease:
        if chosen.paced:
            sys.stdin.read(1)
        time.sleep(chosen.step_s)
        total += number
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(f"{number}\n")
        if number % 10 == 9:
            print(f"counted to {number + 1}")
        fairlead.report(total=total)
    lease.exit_if_yielded()
    print(f"the sum of the numbers below {chosen.steps} is {total}")


if __name__ == "__main__":
    main()
