"""Processes that work for a study do not outlive whoever gave them work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fairlead.experiments.cases import ProcessPool
from foundry import ends, environment

KILLED = """
import os, time
from fairlead.experiments.cases import ProcessPool

if __name__ == "__main__":
    with ProcessPool(2) as pool:
        print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
        pool.submit(time.sleep, 600).result()
"""


def test_who_works_for_a_process_that_is_killed_ends_with_it(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen([sys.executable, script], env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        working = [int(number) for number in process.stdout.readline().split()]
        assert working
        os.kill(process.pid, signal.SIGKILL)
    for number in working:
        assert ends(number, 180.0)


def test_an_interrupt_while_a_worker_starts_ends_the_pool_though_its_argument_is_large() -> None:
    pool = ProcessPool(1, time.sleep, (600.0,))
    pool.submit(len, b"x" * (4 << 20))
    manager, queue = pool._pool._executor_manager_thread, pool._pool._call_queue  # type: ignore[attr-defined]
    assert manager is not None
    assert queue._reader.poll(180.0)  # the argument is on its way
    pool.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    manager.join(180.0)
    assert not manager.is_alive()
