"""Two users' jobs on one node run as two Unix users: neither can read, signal, list or fill what belongs to the other."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_node import Node, order

from fairlead.core.errors import InputError
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.processes import Cgroup, cgroup_limits, find_cgroup
from fairlead.runtime.agent.settings import AgentSettings, User, UserPool, choose_users
from fairlead.runtime.protocol.orders import Launch, LaunchParameters

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")

SECRET = "the-secret-of-ann"

VICTIM = """
import os, time
from pathlib import Path
Path("work.txt").write_text(os.environ["SECRET"])
os.makedirs("open", mode=0o755)
Path("open/seen.txt").write_text(os.environ["SECRET"])
Path(os.environ["FAIRLEAD_CHECKPOINT_DIR"], "model.pt").write_text(os.environ["SECRET"])
with open(os.environ["FAIRLEAD_REPORTS"], "a") as reports:
    reports.write('{"loss": 1}' + chr(10))
print(os.getpid(), os.environ["SECRET"], flush=True)
while True: time.sleep(60)
"""

ATTEMPTS = """
import ctypes, json, os, resource, signal
from pathlib import Path
about = json.loads(os.environ["ABOUT"])
pid, shim, job, root, pages = about["pid"], about["shim"], Path(about["job"]), Path(about["root"]), Path(about["pages"])
launch, rank, secret, page = job / "1", job / "1" / "0", about["secret"], Path(about["page"])
proc, own, checkpoints = Path("/proc", str(pid)), Path(os.environ["FAIRLEAD_CHECKPOINT_DIR"]), Path(about["checkpoints"])
libc = ctypes.CDLL(None, use_errno=True)

def has_secret(path):
    assert secret in path.read_bytes().decode(errors="replace")

def memory():
    start = int((proc / "maps").read_text().partition("-")[0], 16)
    with open(proc / "mem", "rb") as file:
        file.seek(start)
        assert file.read(16)

def call(number):
    assert number == 0, os.strerror(ctypes.get_errno())

def append(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))

def new_in(folder):
    (folder / f"planted-{os.getpid()}").write_text("x")

def through_link(target, inside=""):
    link = own / f"link-{os.urandom(4).hex()}"
    link.symlink_to(target)
    has_secret(link / inside if inside else link)

def hard_link(target):
    os.link(target, own / f"hard-{os.urandom(4).hex()}")

attempts = {
    "environment": lambda: has_secret(proc / "environ"),
    "memory": memory,
    "memory map": lambda: (proc / "maps").read_text()[0],
    "folder by /proc": lambda: os.listdir(proc / "cwd"),
    "file by /proc cwd": lambda: has_secret(proc / "cwd" / "work.txt"),
    "file by /proc root": lambda: has_secret(Path(f"{proc}/root{launch}/work/work.txt")),
    "open files": lambda: os.listdir(proc / "fd"),
    "environment of the shim": lambda: (Path("/proc", str(shim)) / "environ").read_bytes()[0],
    "ptrace": lambda: call(libc.ptrace(0x4206, pid, None, None)),
    "probe": lambda: os.kill(pid, 0),
    "signal": lambda: os.kill(pid, signal.SIGWINCH),
    "signal its group": lambda: os.killpg(pid, signal.SIGWINCH),
    "signal by handle": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGWINCH),
    "signal its shim": lambda: os.kill(shim, signal.SIGWINCH),
    "limits": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "processors": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    "list the jobs": lambda: os.listdir(root / "jobs"),
    "list the job": lambda: os.listdir(job),
    "list the launch": lambda: os.listdir(launch),
    "list the worker": lambda: os.listdir(rank),
    "pass through the job": lambda: os.stat(launch / "work"),
    "list checkpoints": lambda: os.listdir(checkpoints),
    "read a checkpoint": lambda: has_secret(checkpoints / "model.pt"),
    "fill checkpoints": lambda: new_in(checkpoints),
    "list all checkpoints": lambda: os.listdir(checkpoints.parent),
    "read the lease page": lambda: page.read_bytes(),
    "write the lease page": lambda: append(page),
    "list lease pages": lambda: os.listdir(pages),
    "plant a lease page": lambda: new_in(pages),
    "read reports": lambda: (rank / "reports").read_bytes(),
    "write reports": lambda: append(rank / "reports"),
    "list the log": lambda: os.listdir(rank / "log"),
    "read the log": lambda: has_secret(rank / "log" / "00000000000000000000"),
    "write the log": lambda: append(rank / "log" / "00000000000000000000"),
    "list the work directory": lambda: os.listdir(launch / "work"),
    "read the work directory": lambda: has_secret(launch / "work" / "work.txt"),
    "read an open folder in it": lambda: has_secret(launch / "work" / "open" / "seen.txt"),
    "fill the work directory": lambda: new_in(launch / "work"),
    "fill its home": lambda: new_in(launch / "home"),
    "open its folder": lambda: os.chmod(launch / "work", 0o777),
    "own its folder": lambda: os.chown(launch / "work", os.getuid(), -1),
    "move its job": lambda: os.rename(job, str(job) + ".old"),
    "link to a checkpoint": lambda: through_link(checkpoints / "model.pt"),
    "link to the folder": lambda: through_link(launch / "work", "work.txt"),
    "link to its /proc": lambda: through_link(proc / "environ"),
    "second name of a checkpoint": lambda: hard_link(checkpoints / "model.pt"),
    "read the record": lambda: (launch / "record.json").read_bytes(),
    "read the shim's errors": lambda: (rank / "shim.err").read_bytes(),
    "read the users": lambda: (root / "users.json").read_bytes(),
    "move the fencing deadline": lambda: append(root / "fencing-deadline"),
    "list the code": lambda: os.listdir(root / "code"),
    "take the lock": lambda: append(root / "lock"),
}
done = []
for name, attempt in attempts.items():
    try:
        attempt()
        done.append(name)
    except (OSError, AssertionError, IndexError):
        pass
print(json.dumps([len(attempts), done]))
"""

OF_ROOT = {  # what not even another job of the same user may do
    "environment of the shim", "signal its shim", "list the jobs", "list the job", "list the launch", "list the worker",
    "list all checkpoints", "list lease pages", "plant a lease page", "list the log", "read the log", "write the log",
    "move its job", "read the record", "read the shim's errors", "read the users", "move the fencing deadline", "list the code",
    "take the lock",
}  # fmt: skip


@pytest.fixture
def shared_node(make_node: Callable[..., Node], open_root: Path) -> Node:
    return make_node(AgentSettings(pool=UserPool(), pages=open_root / "pages"), root=open_root / "agent")


def script(text: str, user: str, job: int, **more: object) -> Launch:
    return order(job=job, command=("/usr/bin/env", "python3", "-c", text), user=user, cooperative=False, **more)


def victim(node: Node, **more: object) -> tuple[Launch, int]:
    launch = node.starts(script(VICTIM, "ann", 1, environment={"SECRET": SECRET}, **more))
    return launch, int(node.printed(launch).split()[0])


def attacks(node: Node, user: str, job: int, pid: int, checkpoints: Path) -> tuple[int, set[str]]:
    root, pages = node.root, node.settings.pages
    about = {"pid": pid, "shim": _parent(pid), "job": str(root / "jobs" / "1"), "root": str(root), "secret": SECRET}
    about |= {"pages": str(pages), "page": str(pages / "1-1-0"), "checkpoints": str(checkpoints)}
    launch = node.launch(script(ATTEMPTS, user, job, environment={"ABOUT": json.dumps(about)}))
    assert node.ended(launch).code == 0, node.printed(launch)
    count, done = json.loads(node.printed(launch))
    return count, set(done)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@as_root
@pytest.mark.parametrize("shared", [False, True])
def test_no_attempt_on_another_users_job_succeeds(shared_node: Node, open_root: Path, shared: bool) -> None:
    checkpoints = open_root / "shared" / "1" if shared else shared_node.root / "jobs" / "1" / "checkpoints"
    launch, pid = victim(shared_node, checkpoints=str(checkpoints) if shared else "")
    count, done = attacks(shared_node, "bob", 2, pid, checkpoints)
    assert count >= 50
    assert done == set()
    assert not shared_node.ends_of(launch)
    # Another job of the same user does most of this, so the attempts are real ones.
    _, done = attacks(shared_node, "ann", 3, pid, checkpoints)
    assert not done & OF_ROOT
    assert len(done) >= count - len(OF_ROOT) - 3, done  # a kernel may forbid ptrace altogether


@as_root
def test_a_job_does_not_begin_inside_another_users_folder(shared_node: Node) -> None:
    launch, _ = victim(shared_node)
    inside = shared_node.directory(launch) / "work" / "open"
    for job, more in enumerate(({"directory": str(inside)}, {"output": str(inside / "planted")}), start=2):
        reads = shared_node.launch(script("print(open('seen.txt').read())", "bob", job, **more))
        end = shared_node.ended(reads)
        assert end.code == 127
        assert SECRET not in shared_node.printed(reads)
    assert sorted(os.listdir(inside)) == ["seen.txt"]


@as_root
def test_links_among_outputs_do_not_lead_to_another_users_files(shared_node: Node) -> None:
    launch, _ = victim(shared_node)
    work = shared_node.directory(launch) / "work"
    links = f"import os; os.symlink('{work}', 'folder'); os.symlink('{work}/work.txt', 'file.txt')"
    steals = shared_node.launch(script(links, "bob", 2, outputs=("*.txt", "folder/*.txt")))
    assert shared_node.ended(steals).code == 0
    assert json.loads(shared_node.supervisor.read_output(2, 1, "", 0, 1 << 16))["files"] == []


@as_root
def test_folders_and_files_of_a_launch_have_their_owners_and_modes(shared_node: Node, open_root: Path) -> None:
    launch, pid = victim(shared_node, checkpoints=str(open_root / "shared" / "1"))
    uid, directory = os.stat(f"/proc/{pid}").st_uid, shared_node.directory(launch)
    assert 200_000 <= uid <= 200_999
    rank = directory / "0"
    users = [directory / "work", directory / "home", open_root / "shared" / "1"]
    assert {(path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in users} == {(uid, 0o700)}
    files = [rank / "reports", open_root / "pages" / "1-1-0"]
    assert {(path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in files} == {(uid, 0o600)}
    closed = [rank / "log", shared_node.root / "code"]
    assert {(path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in closed} == {(0, 0o700)}
    job = directory.parent.stat()
    assert (job.st_uid, job.st_gid, stat.S_IMODE(job.st_mode)) == (0, uid, 0o710)
    mine = [rank / "shim.err", directory / "record.json", shared_node.root / "users.json", shared_node.root / "lock"]
    assert {(path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in mine} == {(0, 0o600)}


@as_root
def test_checkpoints_of_another_owner_become_the_users_own_and_nothing_else_does(shared_node: Node, open_root: Path) -> None:
    folder, other = open_root / "shared" / "1", open_root / "other"
    (folder / "step").mkdir(parents=True)
    other.write_text("of root")
    (folder / "step" / "model.pt").write_text("saved by root")
    (folder / "link").symlink_to(other)
    os.link(other, folder / "second")
    (folder / "step" / "model.pt").chmod(0o600)
    text = "import os; print(open(os.environ['FAIRLEAD_CHECKPOINT_DIR'] + '/step/model.pt').read())"
    launch = shared_node.launch(script(text, "ann", 1, checkpoints=str(folder)))
    assert shared_node.ended(launch).code == 0
    assert shared_node.printed(launch) == "saved by root\n"
    assert other.stat().st_uid == 0


@as_root
def test_shared_checkpoints_that_all_users_can_write_to_are_refused(shared_node: Node, open_root: Path) -> None:
    (open_root / "shared").mkdir()
    (open_root / "shared").chmod(0o1777)
    with pytest.raises(NodeError, match="could write to it"):
        shared_node.launch(script("", "ann", 1, checkpoints=str(open_root / "shared" / "1")))


def test_a_uid_of_the_pool_stays_with_its_user(tmp_path: Path) -> None:
    pool = UserPool.parse("300000-300002")
    uids = [pool.user_of(name, tmp_path).uid for name in ("ann-x", "bob-x", "", "ann-x")]
    assert sorted(uids[:3]) == [300_000, 300_001, 300_002]
    assert uids[3] == uids[0]
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600
    assert UserPool(400_000, 400_001).user_of("bob-x", tmp_path).uid == uids[1]
    with pytest.raises(NodeError, match="larger --user-pool"):
        pool.user_of("carol-x", tmp_path)
    (tmp_path / "users.json").write_text("{")
    with pytest.raises(NodeError, match="damaged"):
        pool.user_of("ann-x", tmp_path)


def test_a_user_has_the_account_of_its_name_but_never_one_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = {"ann": 1234, "root": 0, "daemon": 1, "nobody": 65534}

    def getpwnam(name: str) -> SimpleNamespace:
        return SimpleNamespace(pw_uid=accounts[name], pw_gid=accounts[name], pw_dir=f"/home/{name}")

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group])
    assert UserPool().user_of("ann", tmp_path) == User("ann", 1234, 1234, (1234,), "/home/ann")
    for name in ("root", "daemon", "nobody", "no\0name"):
        assert UserPool().user_of(name, tmp_path).uid >= 200_000


@pytest.mark.parametrize("text", ["", "0-10", "5000", "3000-2000", "1000-4294967295"])
def test_a_wrong_range_of_uids_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="user-pool"):
        UserPool.parse(text)


def test_jobs_run_as_root_only_when_allowed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(InputError, match="--allow-root-jobs"):
        choose_users("root", "200000-200999", allow_root_jobs=False)
    assert choose_users("", "3000-3999", allow_root_jobs=False) == (None, UserPool(3000, 3999))
    assert caplog.messages == []
    assert choose_users("", "3000-3999", allow_root_jobs=True) == (None, None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_users("", "3000-3999", allow_root_jobs=False) == (None, None)
    root, own = caplog.messages
    assert "run as root" in root
    assert "users are not separated" in own


@as_root
def test_a_root_that_users_cannot_reach_or_could_replace_is_refused(make_node: Callable[..., Node], open_root: Path) -> None:
    settings = AgentSettings(pool=UserPool())
    for mode, problem in ((0o700, "cannot pass through it"), (0o777, "could write to it")):
        open_root.chmod(mode)
        with pytest.raises(NodeError, match=problem):
            make_node(settings, root=open_root / "agent")


@as_root
def test_a_root_of_an_agent_that_ran_jobs_as_itself_is_opened(make_node: Callable[..., Node], open_root: Path) -> None:
    make_node(root=open_root / "agent").supervisor.close()
    node = make_node(AgentSettings(pool=UserPool()), root=open_root / "agent")
    launch = node.launch(script("import os; print(os.getuid())", "ann", 1))
    assert node.ended(launch).code == 0
    assert int(node.printed(launch)) >= 200_000


@as_root
def test_each_users_home_is_in_its_launch(shared_node: Node) -> None:
    launch = shared_node.launch(script("import os; print(os.environ['HOME'], os.environ['USER'])", "ann", 1))
    assert shared_node.ended(launch).code == 0
    assert shared_node.printed(launch) == f"{shared_node.directory(launch)}/home ann\n"


def offers(folder: Path, *controllers: str) -> Path:
    """A folder with the files of a control group that has these controllers."""
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.controllers").write_text(" ".join(("hugetlb", *controllers)))
    (folder / "cgroup.subtree_control").write_text(" ".join(controllers))
    return folder


def test_a_launch_group_limits_cpu_and_memory_of_all_its_workers(tmp_path: Path) -> None:
    group = tmp_path / "1-1"
    group.mkdir()
    for name in ("cpu.max", "memory.max"):
        (group / name).write_text("max")
    Cgroup.of_launch(group, 6.0, 32.0)
    assert [(group / name).read_text() for name in ("cpu.max", "memory.max")] == ["600000 100000", str(32 << 30)]
    bare = tmp_path / "1-2"
    Cgroup.of_launch(bare, 6.0, 32.0).remove()  # a kernel without these controllers
    assert not bare.exists()


@pytest.mark.parametrize("planned", [False, True])
def test_limits_are_those_of_the_plan_or_of_the_task(
    make_node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool
) -> None:
    found: list[tuple[float, float]] = []

    def of_launch(path: Path, cpus: float, memory_gb: float) -> Cgroup:
        found.append((cpus, memory_gb))
        raise FileNotFoundError(path)

    monkeypatch.setattr(Cgroup, "of_launch", of_launch)
    node = make_node(AgentSettings(cgroup=offers(tmp_path / "group", "cpu", "memory")))
    given = LaunchParameters(cpus=4.0, host_memory_gb=8.0) if planned else LaunchParameters()
    with pytest.raises(NodeError):
        node.launch(order(ranks=2, cpus=3.0, host_memory_gb=16.0, parameters=given))
    assert found == [(8.0, 16.0) if planned else (6.0, 32.0)]
    assert node.supervisor.limits == "cpu,memory"


def test_a_node_reports_which_resources_groups_limit(make_node: Callable[..., Node], tmp_path: Path) -> None:
    assert make_node(root=tmp_path / "local").supervisor.limits == ""
    assert make_node(AgentSettings(reports_limits=True), root=tmp_path / "without").supervisor.limits == "none"
    assert find_cgroup("jobs", tmp_path / "absent") is None
    assert find_cgroup("jobs", offers(tmp_path / "hybrid")) is None
    mount = offers(tmp_path / "mount", "cpu", "memory")
    assert find_cgroup("jobs", mount) is None, "nothing can be limited in it"
    offers(mount / "jobs", "cpu", "memory")
    assert find_cgroup("jobs", mount) == mount / "jobs"
    assert cgroup_limits(mount / "jobs") == ["cpu", "memory"]
