"""Disks that are full: nothing is half started, and what runs ends properly all the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agent_node import PATIENCE_S

ON_A_SMALL_DISK = """
import json, os, resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from agent_node import IGNORES_SIGTERM, RUNS_FOREVER, Node, order
from fairlead.core.errors import FairleadError
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.processes import descendants, find_process
root = Path({root!r})
node = Node(root)
def fill():
    with open(root / "ballast", "wb", buffering=0) as file:
        while True:
            try: file.write(b"x" * 4096)
            except OSError: return
def refused(launch):
    try: node.launch(launch)
    except NodeError as fault: return str(fault)
seen = {{}}
{scene}
node.close()
print(json.dumps(seen))
"""

REFUSED = """
{make_full}
seen["why"] = refused(order(RUNS_FOREVER, ranks=2))
seen["left"] = sorted(str(path.relative_to(root)) for path in (root / "jobs").rglob("*"))
myself = find_process(os.getpid())
seen["processes"] = len(descendants(myself.pid, myself.started))
{make_room}
launch = node.launch(order("print('now')"))
seen["code"] = node.ended(launch).code
"""

ENDS = """
launch = node.starts(order("import sys; print('up', flush=True); sys.stdout.buffer.write(b'x' * 10**6); sys.exit(3)",
    environment={"PYTHONUNBUFFERED": "1"}))
end = node.ended(launch)
seen["exit"] = json.loads((node.directory(launch) / "0/exit.json").read_text())
seen["code"] = end.code
revoked = order(IGNORES_SIGTERM, job=2)
(root / "jobs/1/1/0/log").rename(root / "gone")
for piece in (root / "gone").iterdir(): piece.unlink()
node.starts(revoked)
fill()
node.revoke(revoked)
node.clock.passes(31)
seen["why"] = node.ended(revoked).why
"""


def on_a_small_disk(tmp_path: Path, scene: str) -> dict[str, object]:
    """The scene, in a process that has a file system of 256 KiB to itself."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    script = ON_A_SMALL_DISK.format(tests=str(Path(__file__).parent), root=str(place / "root"), scene=scene)
    mounts = 'mount -t tmpfs -o size=256k tmpfs "$1" && exec "$2" -c "$3"'
    return run("unshare", "-m", "sh", "-c", mounts, "sh", str(place), sys.executable, script)


def run(*command: str) -> dict[str, object]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_launch_on_a_full_disk_starts_nothing_and_names_the_path(tmp_path: Path) -> None:
    scene = REFUSED.format(make_full="fill()", make_room='(root / "ballast").unlink()')
    seen = on_a_small_disk(tmp_path, scene)
    assert "disk/root/jobs/1/1: No space left on device" in str(seen.pop("why"))
    assert seen == {"left": [], "processes": 0, "code": 0}


def test_a_file_that_may_not_grow_is_the_same(tmp_path: Path) -> None:
    full, room = (
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({soft}, resource.RLIM_INFINITY))"
        for soft in ("0", "resource.RLIM_INFINITY")
    )
    scene = REFUSED.format(make_full=full, make_room=room)
    script = ON_A_SMALL_DISK.format(tests=str(Path(__file__).parent), root=str(tmp_path / "root"), scene=scene)
    seen = run(sys.executable, "-c", script)
    assert "root/jobs/1/1: File too large" in str(seen.pop("why"))
    assert seen == {"left": [], "processes": 0, "code": 0}


def test_a_job_that_fills_the_disk_still_says_how_it_ended_and_others_can_be_stopped(tmp_path: Path) -> None:
    seen = on_a_small_disk(tmp_path, ENDS)
    assert seen["code"] == 3
    assert seen["exit"]["code"] == 3
    assert seen["exit"]["lost"] > 0
    assert seen["why"] == "killed 30 s after it was asked to stop"
