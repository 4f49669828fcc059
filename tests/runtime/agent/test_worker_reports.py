"""What workers say about themselves, and what they may not do with it."""

from __future__ import annotations

import math
from pathlib import Path

from agent_node import Node, order

from fairlead.client.lease_page import Field, Page
from fairlead.runtime.agent.lease_file import LeaseFile
from fairlead.runtime.agent.worker_reports import CHUNK, MAX_BACKLOG, MAX_LINE, WorkerReports
from fairlead.runtime.protocol.orders import MAX_METRICS


def test_reports_become_metrics_and_nonsense_is_ignored(node: Node) -> None:
    script = r"""
import os
with open(os.environ["FAIRLEAD_REPORTS"], "a") as file:
    file.write('{"loss": 0.5, "accuracy": 1}\n')
    file.write('nonsense\n[1]\n{"loss": "low"}\n{"loss": NaN}\n{"loss": true}\n{"loss": 1e999}\n{"\\ud800": 1}\n')
    file.write('{"loss": 0.25}\n{"torn": 1')
"""
    launch = node.launch(order(script))
    node.ended(launch)
    assert node.metrics() == [("loss", 0.5), ("accuracy", 1.0), *[("loss", math.inf)] * 2, ("loss", 0.25)]


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_bytes(b'{"a": 1}\n{"a"')
    reports = WorkerReports(path)
    assert reports.read() == [("a", 1.0)]
    with open(path, "ab") as file:
        file.write(b": 2}\n")
    assert reports.read() == [("a", 2.0)]
    assert reports.read() == []
    reports.close()


def test_what_was_dealt_with_is_not_told_again_by_the_next_agent(node: Node) -> None:
    script = """
import os, signal
file = open(os.environ["FAIRLEAD_REPORTS"], "a")
file.write('{"loss": 1}\\n')
file.flush()
signal.signal(signal.SIGTERM, lambda *_: (file.write('{"loss": 2}\\n'), file.close(), os._exit(0)))
print("up", flush=True)
while True: signal.pause()
"""
    launch = node.starts(order(script, cooperative=False))
    node.until(lambda: node.metrics(), "a report")
    node.reports += node.supervisor.poll()
    node.restarts()
    node.revoke(launch)
    node.ended(launch)
    assert node.metrics() == [("loss", 1.0), ("loss", 2.0)]


def test_lines_without_an_end_and_floods_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_bytes(b"x" * (CHUNK + 5) + b'\n{"a": 1}\n' + b'{"' + b"y" * MAX_LINE + b'": 1}\n{"a": 2}\n')
    reports = WorkerReports(path)
    assert reports.rest() == [("a", 1.0), ("a", 2.0)]
    line = b'{"b": 3}\n'
    with open(path, "ab") as file:
        file.write(line * (MAX_BACKLOG // len(line) + 2) + b'{"last": 4}\n')
    said = reports.rest()
    assert said[-1] == ("last", 4.0)
    assert len(said) <= CHUNK // len(line) + 1
    reports.close()


def test_progress_is_told_when_it_changed(node: Node) -> None:
    script = """
import os, sys
from fairlead.client.lease_page import Field, Page
page = Page(os.environ["FAIRLEAD_LEASE"])
page[Field.BEGAN_NS], page[Field.BEGAN_AT] = 1_000_000_000, 10
page[Field.LAST_NS], page[Field.STEPS], page[Field.SAVED], page[Field.BATCH_SIZE] = 3_000_000_000, 14, 12, 32
"""
    launch = node.launch(order(script))
    end = node.ended(launch)
    (last,) = node.progress()[-1:]
    assert (last.steps, last.saved, last.rate, last.batch_size) == (14, 12, 2.0, 32)
    assert (end.steps, end.saved) == (14, 12)
    assert len(node.progress()) == len(set(node.progress()))


def test_a_worker_that_spoils_its_page_harms_only_itself(node: Node) -> None:
    script = """
import os
page = os.environ["FAIRLEAD_LEASE"]
os.truncate(page, 0)
print("up", flush=True)
open(page, "wb").write(b"\\xff" * 4096)
"""
    launch = node.starts(order(script))
    node.revoke(launch)
    assert node.ended(launch).code == 0


def test_the_agent_and_the_worker_see_one_page(tmp_path: Path) -> None:
    lease = LeaseFile.create(tmp_path / "page", 5, 2.5)
    page = Page(tmp_path / "page")
    assert (page[Field.MAX_STEPS], page[Field.MAX_MS]) == (5, 2500)
    page[Field.STEPS] = 2**64 - 1
    page[Field.WANTS_MORE] = 1
    assert lease.status().steps == 2**53
    assert lease.status().wants_more
    lease.revoke()
    assert page[Field.REVOKED] == 1
    page.close()
    lease.close()


def test_names_that_are_too_many_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_text("".join(f'{{"name-{n}": {n}, "loss": 0.5}}\n' for n in range(100)))
    reports = WorkerReports(path)
    said = reports.read()
    assert len({name for name, _ in said}) == MAX_METRICS
    assert said.count(("loss", 0.5)) == 100
    reports.close()
