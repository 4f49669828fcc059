"""What is too old on a node goes; what runs, or was not heard of, stays."""

from __future__ import annotations

import io
import os
import time
import zipfile

from agent_node import RUNS_FOREVER, order

from fairlead.runtime.protocol.code_archive import archive_digest


def test_old_launches_and_code_go_and_the_rest_stays(node):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("main.py", "print('hi')")
    digest = archive_digest(packed.getvalue())
    node.supervisor.take_code(packed.getvalue(), digest)
    heard, unheard, running = order("print('x')", job=1), order("print('y')", job=2), order(RUNS_FOREVER, job=3)
    for launch in (heard, unheard):
        node.launch(launch)
        node.ended(launch)
    node.starts(running)
    node.supervisor.acknowledge((1, 1))
    now = time.time()
    assert node.supervisor.sweep(now) == 0
    assert node.supervisor.read_log(1, 1, 0).data == b"x\n"
    later = now + node.settings.keep_s + 60
    assert node.supervisor.sweep(later) == 2
    assert sorted(os.listdir(node.root / "jobs")) == ["2", "3"]
    assert not node.supervisor.has_code(digest)
    assert node.supervisor.sweep(later) == 0
