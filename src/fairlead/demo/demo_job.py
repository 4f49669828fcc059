"""The job of the demo: it sleeps instead of computing, twice as long on a k80, and uses a lease as a training script does. By
option it fails once, or doubles its batch size.

    python -m fairlead.demo.demo_job --steps 60 --step-s 0.15
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import fairlead

_SLOWDOWN = {"k80": 2.0}


def _main() -> None:
    options = argparse.ArgumentParser(description="sleep, step by step")
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--step-s", type=float, default=0.15)
    options.add_argument("--fail-at", type=int, default=-1, help="fail at this step, the first time")
    options.add_argument("--double-every", type=int, default=0, help="double the batch size after so many steps")
    chosen = options.parse_args()
    node = os.environ.get("FAIRLEAD_REPORTS", "")  # the path names the node, and a node of the demo its type
    slow = next((factor for name, factor in _SLOWDOWN.items() if f"/{name}-" in node), 1.0)
    failed = Path(os.environ.get("FAIRLEAD_CHECKPOINT_DIR", ".")) / "failed-once"
    lease = fairlead.lease(range(chosen.steps), save=lambda folder: None, every_steps=5)
    for step in lease:
        if chosen.double_every:
            lease.batch_size = 32 * 2 ** (step // chosen.double_every)
        if step == chosen.fail_at and not failed.exists():
            failed.touch()
            sys.exit(f"failed at step {step}, as requested")
        time.sleep(slow * chosen.step_s)
    lease.exit_if_yielded()


if __name__ == "__main__":
    _main()
