"""Lines that a process logs."""

from __future__ import annotations

import logging
import subprocess
import sys

from fairlead.runtime.log_format import TextLines

CODE = """
import logging
from fairlead.runtime.log_format import log_to_stderr
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


def test_accelerators_stand_in_a_line_for_people_without_quotes():
    record = logging.makeLogRecord({"msg": "job started", "levelname": "INFO", "accelerators": [12, 13], "why": "a b"})
    assert TextLines().format(record).endswith(' info job started accelerators=[12,13] why="a b"')


def test_what_agents_say_cannot_control_the_terminal_of_a_reader():
    record = logging.makeLogRecord({"msg": "agent\nrefused", "levelname": "INFO", "journal": "\x1b]0;x\x07\x9b31m\x7f"})
    assert TextLines().format(record).endswith(r" info agent\nrefused journal=\x1b]0;x\x07\x9b31m\x7f")
