"""Lines that a process logs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import logging
from fairlead.runtime.logs import log_to_stderr
log_to_stderr("text")
for number in range(30_000):
    logging.getLogger("fairlead").info("something happened")
print("done", flush=True)
"""


def test_who_does_not_read_the_log_does_not_hold_the_process_up():
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"  # nobody has read its standard error so far
    _, told = process.communicate(timeout=180)
    assert "something happened" in told
