"""A job that does not import Fairlead: it saves when it gets SIGTERM, as scripts on many clusters do, and resumes from there
when it is started again. Submit such a script with `cooperative: false`. It saves in the directory FAIRLEAD_CHECKPOINT_DIR.

    python examples/jobs/plain.py --steps 100 --step-s 0.1
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

STOPPED_IN_BETWEEN = 143  # what a shell says of a process that SIGTERM has ended


def main() -> None:
    options = argparse.ArgumentParser(description="count, and save on SIGTERM")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--step-s", type=float, default=0.1)
    options.add_argument("--log", type=Path, help="append each step's number to this file")
    chosen = options.parse_args()
    state = Path(os.environ.get("FAIRLEAD_CHECKPOINT_DIR", ".")) / "plain.txt"
    stopping = False

    def stop(signal_number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    begin = int(state.read_text()) if state.exists() else 0
    for step in range(begin, chosen.steps):
        time.sleep(chosen.step_s)
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(f"{step}\n")
        if stopping:
            draft = state.with_suffix(".new")
            draft.write_text(str(step + 1))
            draft.replace(state)
            sys.exit(STOPPED_IN_BETWEEN)
    print(f"did {chosen.steps} steps")


if __name__ == "__main__":
    main()
