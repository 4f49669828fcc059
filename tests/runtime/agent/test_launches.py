"""What a launch gives to its workers, and which launches are refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_node import LEASED, PATIENCE_S, RUNS_FOREVER, Node, order

from fairlead.runtime.agent.agent_errors import NodeError, OrderRefused
from fairlead.runtime.agent.settings import AgentSettings, User
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.protocol.code_archive import archive_digest

SHOW = "import json, os; print(json.dumps({**os.environ, 'cwd': os.getcwd()}))"


def test_a_job_that_does_its_work_ends_with_0(node: Node) -> None:
    launch = node.launch(order("print('done')"))
    end = node.ended(launch)
    assert (end.code, end.yielded, end.why) == (0, False, "")
    assert node.printed(launch) == "done\n"
    assert not node.supervisor.running()


def test_a_folder_that_another_agent_of_the_gang_has_just_made_is_taken(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, make = tmp_path / "saved", Path.mkdir

    def after_somebody_else(path: Path, *about: int, **more: bool) -> None:
        if path == saved and not saved.exists():
            os.mkdir(saved)
        make(path, *about, **more)

    monkeypatch.setattr(Path, "mkdir", after_somebody_else)
    launch = replace(order("print('done')"), checkpoints=str(saved))
    node.launch(launch)
    assert node.ended(launch).code == 0


def test_workers_know_their_place_in_the_gang(node: Node, tmp_path: Path) -> None:
    gang = replace(
        order(SHOW, ranks=2, job=7, generation=3, environment={"LR": "0.1", "RANK": "99"}),
        ranks=(2, 3),
        accelerators=(3, 1),
        world_size=4,
        master_address="10.0.0.1",
        master_port=2900,
        gang_port=2901,
        gang_token="hush",
        checkpoints=str(tmp_path / "saved"),
    )
    node.launch(gang)
    assert node.ended(gang).code == 0
    first, second = (json.loads(node.printed(gang, rank)) for rank in (2, 3))
    assert [seen["RANK"] for seen in (first, second)] == ["2", "3"]
    assert [seen["LOCAL_RANK"] for seen in (first, second)] == ["0", "1"]
    assert [seen["CUDA_VISIBLE_DEVICES"] for seen in (first, second)] == ["3", "1"]
    assert first["WORLD_SIZE"] == "4"
    assert (first["MASTER_ADDR"], first["MASTER_PORT"], first["FAIRLEAD_GANG_PORT"]) == ("10.0.0.1", "2900", "2901")
    assert (first["FAIRLEAD_GANG_TOKEN"], second["FAIRLEAD_GANG_TOKEN"]) == ("hush", "hush")
    assert (first["FAIRLEAD_JOB"], first["FAIRLEAD_GENERATION"], first["LR"]) == ("7", "3", "0.1")
    assert first["PYTHONUNBUFFERED"] == "1"  # or whoever follows its log would see nothing for long
    assert first["FAIRLEAD_CHECKPOINT_DIR"] == str(tmp_path / "saved")
    assert (tmp_path / "saved").is_dir()
    assert first["FAIRLEAD_LEASE"] != second["FAIRLEAD_LEASE"]
    assert Path(first["FAIRLEAD_REPORTS"]).exists()


def test_secrets_of_the_agent_stay_with_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_TOKEN", "hushhush")
    launch = node.launch(order(SHOW))
    node.ended(launch)
    assert "hushhush" not in node.printed(launch)


def test_a_command_is_not_read_by_a_shell(node: Node) -> None:
    words = ("$HOME; echo no", "a b", "*")
    launch = order()
    launch = replace(
        launch, task=replace(launch.task, command=(sys.executable, "-c", "import sys; print(sys.argv[1:])", *words))
    )
    node.launch(launch)
    node.ended(launch)
    assert node.printed(launch).strip() == str(list(words))


def test_a_prefix_comes_before_the_command(node: Node) -> None:
    launch = node.launch(order("import os; print(os.environ['WRAPPED'])", prefix=("env", "WRAPPED=yes")))
    node.ended(launch)
    assert node.printed(launch) == "yes\n"


def test_a_worker_leads_a_group_in_the_session_of_its_shim(node: Node) -> None:
    launch = node.launch(order("import os; print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getppid())"))
    node.ended(launch)
    assert node.printed(launch) == "True True\n"


def test_a_job_runs_where_it_says(node: Node, tmp_path: Path) -> None:
    launch = node.launch(order("import os; print(os.getcwd())", directory=str(tmp_path)))
    node.ended(launch)
    assert node.printed(launch).strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": ("no-such-program",)}, "cannot run 'no-such-program'"),
        ({"directory": "/no/such/place"}, "there is no directory /no/such/place on this node"),
        ({"command": ("\u00e9" * 9000,)}, "cannot run"),
    ],
)
def test_a_command_that_cannot_run_ends_with_the_reason(node: Node, change: dict[str, object], why: str) -> None:
    launch = node.launch(order(**change))
    end = node.ended(launch)
    assert end.code == 127
    assert why in end.why
    assert end.permanent
    assert why in node.printed(launch)


@pytest.mark.parametrize(
    "script",
    [
        "os.rmdir(own); open(own, 'w').close()",
        "os.rmdir(own); os.symlink('/no/such/place', own)",
        "os.rmdir(own); os.symlink(own, own)",
    ],
)
def test_a_job_that_spoils_its_own_folder_is_refused_and_others_begin(node: Node, script: str) -> None:
    spoils = f"import os; own = os.environ['FAIRLEAD_CHECKPOINT_DIR']; {script}"
    assert node.ended(node.launch(order(spoils))).code == 0
    with pytest.raises(OrderRefused, match="checkpoints exists and is not a folder"):
        node.launch(order(generation=2))
    assert node.ended(node.launch(order(job=8))).code == 0


def test_a_job_that_closes_its_own_folder_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.ended(node.launch(order()))
    closed = {str(node.root / "jobs" / str(order().job))}
    monkeypatch.setattr(os, "access", lambda path, how: str(path) not in closed)  # whoever is root may do everything
    with pytest.raises(OrderRefused, match="is not readable"):
        node.launch(order(generation=2))
    closed.add(str(node.root / "jobs"))
    node.ended(node.launch(order(generation=2)))  # where nobody could begin it is not the job: the node has its say


def test_the_same_launch_again_starts_nothing(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    node.launch(launch)
    assert len(node.workers(launch)) == 1
    node.kill(launch)
    node.ended(launch)
    node.launch(launch)
    assert not node.supervisor.running()


def test_an_older_generation_than_seen_is_refused(node: Node) -> None:
    node.ended(node.launch(order(generation=4)))
    with pytest.raises(OrderRefused, match="generation 3 has ended; generation 4"):
        node.launch(order(generation=3))
    node.restarts()
    with pytest.raises(OrderRefused, match="generation 3 has ended"):
        node.launch(order(generation=3))


def test_a_new_generation_waits_for_the_old_one_to_end(node: Node) -> None:
    old, new = order(RUNS_FOREVER, generation=1), order(generation=2)
    node.starts(old)
    with pytest.raises(OrderRefused, match="generation 1 still runs"):
        node.launch(new)
    node.kill(old)
    node.ended(old)
    node.launch(new)
    assert node.ended(new).code == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": ()}, "no command"),
        ({"ranks": ()}, "no workers"),
        ({"accelerators": (4,)}, "this node has 4 GPUs"),
        ({"accelerators": (-1,)}, "this node has 4 GPUs"),
        ({"accelerators": (0, 1)}, "one GPU for each"),
        ({"world_size": 0}, "not below its 0"),
        ({"directory": "../up"}, "not an absolute path"),
        ({"checkpoints": "saved"}, "not an absolute path"),
        ({"environment": {"A=B": "c"}}, "contains '='"),
        ({"command": ("a\0b",)}, "NUL byte"),
        ({"code": "0" * 64}, "was not sent"),
        ({"code": "../../etc"}, "was not sent"),
        ({"grace_s": float("nan")}, "grace"),
        ({"max_s": float("inf")}, "bounds"),
        ({"max_steps": 2**64}, "bounds"),
        ({"generation": 0}, "out of range"),
    ],
)
def test_an_order_that_makes_no_sense_leaves_no_trace(node: Node, change: dict[str, object], why: str) -> None:
    launch = order()
    task = {name: change.pop(name) for name in tuple(change) if name in launch.task.__dataclass_fields__}
    with pytest.raises(OrderRefused, match=why):
        node.launch(replace(launch, task=replace(launch.task, **task), **change))
    assert not list((node.root / "jobs").iterdir())
    node.launch(order())
    assert node.ended(order()).code == 0


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A place that other users can pass through, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        yield Path(place)


def test_jobs_under_another_user_own_what_they_need_and_nothing_else(open_to_all: Path, make_node: Callable[..., Node]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    node = make_node(AgentSettings(user=User.named("nobody")), root=open_to_all / "root")
    script = """
import json, os
from pathlib import Path
def writable(path):
    try: Path(path).write_text("x")
    except OSError: return False
    return True
desk = Path(os.environ["FAIRLEAD_LEASE"]).parent
page = open(os.environ["FAIRLEAD_LEASE"], "r+b")
print(json.dumps({
    "user": os.getresuid(), "group": os.getresgid(), "groups": os.getgroups(), "home": os.environ["HOME"],
    "checkpoints": writable(os.environ["FAIRLEAD_CHECKPOINT_DIR"] + "/c"), "here": writable("here"),
    "reports": writable(os.environ["FAIRLEAD_REPORTS"]),
    "exit": writable(desk / "exit.json"), "record": writable(desk.parent / "record.json"),
    "log": os.access(desk / "log", os.R_OK),
}))
try: os.kill(os.getppid(), 9)
except PermissionError: print("cannot kill its shim")
"""
    launch = order(script, command=("/usr/bin/env", "python3", "-c", script))
    node.launch(launch)
    end = node.ended(launch)
    lines = node.printed(launch).splitlines()
    assert end.code == 0, lines
    seen = json.loads(lines[0])
    number = User.named("nobody").uid
    assert seen.pop("user") == [number] * 3
    assert 0 not in seen.pop("groups") + seen.pop("group")
    assert seen.pop("home") == "/nonexistent"
    assert seen == {"checkpoints": True, "here": True, "reports": True, "exit": False, "log": False, "record": False}
    assert lines[1] == "cannot kill its shim"


def test_code_is_read_and_not_changed_by_jobs_of_another_user(open_to_all: Path, make_node: Callable[..., Node]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    node = make_node(AgentSettings(user=User.named("nobody")), root=open_to_all / "root")
    script = """
import os
import pkg.words
for path in ("train.py", "pkg/words.py"):
    try: open(path, "a")
    except PermissionError: print("not", path)
open("pkg/new", "w")
print(pkg.words.WORD)
"""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("train.py", script)
        archive.writestr("pkg/words.py", "WORD = 'read'")
    digest = archive_digest(memory.getvalue())
    node.supervisor.take_code(memory.getvalue(), digest)
    launch = node.launch(order(command=("/usr/bin/env", "python3", "-B", "train.py"), code=digest))
    node.ended(launch)
    assert node.printed(launch).splitlines() == ["not train.py", "not pkg/words.py", "read"]


def test_pages_can_lie_in_memory_and_go_with_the_launch(make_node: Callable[..., Node], tmp_path: Path) -> None:
    node = make_node(AgentSettings(pages=tmp_path / "memory"))
    launch = node.starts(order(LEASED, ranks=1))
    (page,) = (tmp_path / "memory").iterdir()
    assert page.name == "1-1-0"
    node.restarts()
    node.revoke(launch)
    assert node.ended(launch).yielded
    assert not list((tmp_path / "memory").iterdir())


def test_a_root_that_cannot_be_made_is_a_fault_with_its_path(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError, match="file"):
        Supervisor(tmp_path / "file" / "root", node.accelerators)


def test_a_control_group_that_cannot_be_made_is_a_fault_and_nothing_starts(make_node, tmp_path: Path) -> None:
    node = make_node(AgentSettings(cgroup=tmp_path / "not" / "there"))
    with pytest.raises(NodeError, match="not/there/1-1: No such file"):
        node.launch(order(RUNS_FOREVER))
    assert not list((node.root / "jobs").iterdir())
    assert not node.supervisor.running()


def test_two_supervisors_do_not_share_a_root_and_a_closed_one_leaves_it_to_the_next(node: Node) -> None:
    script = """
import sys
from pathlib import Path
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.supervisor import Supervisor
Supervisor(Path(sys.argv[1]), NodeAccelerators.parse("v100:1"))
"""

    def errors() -> str:
        asked = [sys.executable, "-c", script, str(node.root)]
        return subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S).stderr

    assert "DirectoryInUse" in (refused := errors())
    assert "another agent works on this directory" in refused
    node.supervisor.close()
    assert not errors()
    node.supervisor.close()
