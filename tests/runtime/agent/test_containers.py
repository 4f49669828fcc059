"""Jobs in containers: the command for each runtime, what a job sees, how it is stopped, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_node import IGNORES_SIGTERM, OPENS, PATIENCE_S, RUNS_FOREVER, Node, order

from fairlead.core.errors import InputError
from fairlead.runtime.agent.agent_errors import OrderRefused
from fairlead.runtime.agent.containers import ContainerRules, ContainerRun, WorkerFiles, runtime_variables
from fairlead.runtime.agent.processes import find_process
from fairlead.runtime.agent.settings import AgentSettings, User
from fairlead.runtime.agent.shim import NO_CONTAINER
from fairlead.runtime.protocol.orders import Container, Ended, Launch, Mount

STUB = Path(__file__).with_name("stub_runtime.py")
# Every user can run the system's Python; that of the tests may lie in the home of root.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or os.path.realpath(sys.executable)
ROOT = os.geteuid() == 0
RUNTIMES = ("apptainer", "podman", "docker")

SAVES_AT_SIGTERM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True) or sys.exit(0))
print("up", flush=True)
while True: signal.pause()
"""

WAITS_FOR_ITS_LEASE = f"""
import time
{OPENS}
print("up", flush=True)
while not page[Field.REVOKED]: time.sleep(0.001)
page[Field.STAGE] = Stage.YIELDED
"""

HAS_A_CHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {RUNS_FOREVER!r}], start_new_session=True, stdout=subprocess.DEVNULL)
{IGNORES_SIGTERM}"""

SHOW = "import json, os; print(json.dumps({**os.environ, 'cwd': os.getcwd()}))"


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[..., ContainerRules]]:
    """Installs stubs of runtimes, and returns rules that find no others."""
    daemons: list[subprocess.Popen[str]] = []
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o755)

    def make(*names: str, **rules: Any) -> ContainerRules:
        for name in names:
            program = folder / name
            program.write_text(f"#!{PYTHON}\n{STUB.read_text()}")
            program.chmod(0o755)
            if name == "docker":
                daemons.append(subprocess.Popen([program, "daemon"], stdout=subprocess.PIPE, text=True))
                assert daemons[-1].stdout is not None
                assert daemons[-1].stdout.readline() == "listens\n"
        given = {"docker": "docker" in names, "nvidia": tmp_path / "no-device", **rules}
        return ContainerRules(path=str(folder), **given)

    yield make
    for process in daemons:
        process.kill()
        process.communicate()


def calls(tmp_path: Path, runtime: str) -> list[dict[str, Any]]:
    path = tmp_path / "programs" / f"{runtime}.calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def in_container(script: str, image: str = "train:1", **more: Any) -> Launch:
    """A launch of a Python script in a container."""
    task = {"command": ("python3", "-c", script), "container": Container(image, **more.pop("container", {}))}
    return order(**{**task, **more})


def command(rules: ContainerRules, container: Container, **more: Any) -> Any:
    variables = {"FAIRLEAD_LEASE": "/a/page", "SEED": "1", "HOME": "/a/home", **more.pop("variables", {})}
    files = WorkerFiles("/project", True, "/a/home", ("/a/page", "/a/saved"))
    own = {"PATH": "/bin", "HOME": "/home/ann", "LANG": "C"}
    run = ContainerRun(container, ("python", "train.py"), variables, files, "fairlead-1-1-0", [1000, 100, 100, 20], own)
    return replace(run, **more).command(rules)


class TestCommands:
    def test_podman_runs_with_the_users_ids_and_the_network_and_processes_of_the_node(
        self, install: Callable[..., ContainerRules]
    ):
        rules = install("podman")
        run = command(rules, Container("train:1", mounts=(Mount("/data", "/mnt", read_only=True),), directory="/src"))
        program = f"{rules.path}/podman"
        assert run.words[:3] == [program, "--cgroup-manager=cgroupfs", "run"]
        options, rest = run.words[3 : run.words.index("train:1")], run.words[run.words.index("train:1") + 1 :]
        assert rest == ["python", "train.py"]
        assert {"--rm", "--user=1000:100", "--userns=keep-id", "--network=host", "--ipc=host", "--pid=host"} < set(options)
        assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--workdir=/src", "--entrypoint="} < set(options)
        assert "type=bind,source=/data,destination=/mnt,ro" in options
        assert {f"type=bind,source={path},destination={path}" for path in ("/project", "/a/page", "/a/saved", "/a/home")} < set(
            options
        )
        assert run.remove == [program, "--cgroup-manager=cgroupfs", "rm", "--force", "--ignore", "fairlead-1-1-0"]

    def test_docker_gets_groups_and_limits_because_its_daemon_is_outside(self, install: Callable[..., ContainerRules]):
        run = command(install("docker"), Container("docker://train:1"), limits=(2.5, 8.0))
        assert {"--user=1000:100", "--group-add=20", "--cpus=2.5", f"--memory={8 << 30}b"} < set(run.words)
        assert "--userns=keep-id" not in run.words
        assert run.words[-3:] == ["train:1", "python", "train.py"]

    @pytest.mark.parametrize(
        ("image", "named"),
        [
            ("pytorch/pytorch:2.5", "docker://pytorch/pytorch:2.5"),
            ("docker://train", "docker://train"),
            ("oras://registry/train", "oras://registry/train"),
            ("docker-archive:/images/train.tar", "docker-archive:/images/train.tar"),
            ("/images/train.sif", "/images/train.sif"),
            ("train.sif", "train.sif"),
        ],
    )
    def test_apptainer_runs_files_and_images_of_registries(
        self, install: Callable[..., ContainerRules], image: str, named: str
    ):
        rules = install("apptainer")
        run = command(rules, Container(image))
        assert run.words[:7] == [f"{rules.path}/apptainer", "exec", "--cleanenv", "--home", "/a/home", "--pwd", "/project"]
        assert run.words[-3:] == [named, "python", "train.py"]
        assert run.environment["APPTAINERENV_SEED"] == "1"
        assert "APPTAINERENV_HOME" not in run.environment  # apptainer refuses it
        assert run.remove == []

    @pytest.mark.parametrize(("runtime", "flag"), [*zip(RUNTIMES, ("--nv", "--device=nvidia.com/gpu=all", "--gpus=all"))])
    def test_gpus_are_passed_where_the_node_has_nvidias_driver(
        self, install: Callable[..., ContainerRules], tmp_path: Path, runtime: str, flag: str
    ):
        rules = install(*RUNTIMES)
        assert flag not in command(rules, Container("train", runtime)).words
        assert flag in command(replace(rules, nvidia=tmp_path), Container("train", runtime)).words

    def test_values_are_not_in_the_command_unless_the_runtime_would_read_them(self, install: Callable[..., ContainerRules]):
        """Any user of a node can read the commands of all processes."""
        tokens = ("GOOGLE_API_KEY", "STORAGE_CONNECTION_STRING", "REGISTRY_PASSWORD", "CONTAINER_TOKEN", "DOCKER_PASSWORD")
        variables = {"SECRET": "hush\nhush", "DOCKER_HOST": "tcp://other", "LD_PRELOAD": "evil.so", "LANG": "de"}
        run = command(install("podman"), Container("train"), variables={**variables, **dict.fromkeys(tokens, "hush")})
        assert "hush" not in " ".join(run.words)
        assert run.environment["SECRET"] == "hush\nhush"
        assert {"DOCKER_HOST=tcp://other", "LD_PRELOAD=evil.so", "LANG=de", "HOME=/a/home"} < set(run.words)
        assert {"DOCKER_HOST", "LD_PRELOAD"}.isdisjoint(run.environment)
        assert (run.environment["HOME"], run.environment["LANG"]) == ("/home/ann", "C")

    def test_paths_with_commas_and_quotes_stay_one_field(self, install: Callable[..., ContainerRules]):
        run = command(install("podman"), Container("train", mounts=(Mount('/a,b"c', "/d"),)))
        assert """type=bind,"source=/a,b""c",destination=/d""" in run.words

    def test_a_folder_is_mounted_once_and_before_what_is_in_it(self, install: Callable[..., ContainerRules]):
        mounts = (Mount("/data", "/project/data"), Mount("/project/", "/project", read_only=True))
        run = command(install("podman"), Container("train", mounts=mounts))
        places = [word for word in run.words if "destination=/project" in word]
        assert places == [
            "type=bind,source=/project/,destination=/project,ro",
            "type=bind,source=/data,destination=/project/data",
        ]
        with pytest.raises(OrderRefused, match="/data and /project cannot both be mounted at /project"):
            command(install("podman"), Container("train", mounts=(Mount("/data", "/project"),)))

    @pytest.mark.parametrize("prefix", [(), ("env",)])
    def test_a_line_for_a_shell_runs_where_an_image_has_no_bash(
        self, install: Callable[..., ContainerRules], prefix: tuple[str, ...]
    ):
        run = command(install("podman"), Container("train"), words=(*prefix, "bash", "-c", "echo $HOME && true"))
        words = run.words[run.words.index("train") + 1 :]
        assert words[: len(prefix) + 1] == [*prefix, "sh"]
        assert words[-1] == "echo $HOME && true"
        done = subprocess.run([*words[:-1], "echo a && echo b"], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.stdout == "a\nb\n"

    def test_a_runtime_has_its_users_folder_and_what_the_operator_set(self):
        environment = {"XDG_RUNTIME_DIR": "/run/user/agent", "APPTAINER_CACHEDIR": "/cache", "SECRET": "hush"}
        own = runtime_variables({"HOME": "/home/agent"}, environment, os.geteuid())
        assert own == {"HOME": "/home/agent", "XDG_RUNTIME_DIR": "/run/user/agent", "APPTAINER_CACHEDIR": "/cache"}
        assert "XDG_RUNTIME_DIR" not in runtime_variables({}, environment, 4_000_000)


class TestChoice:
    def test_the_first_runtime_of_the_node_is_used(self, install: Callable[..., ContainerRules]):
        assert install("docker").find(Container("train"))[0] == "docker"
        assert install("podman", docker=True).find(Container("train"))[0] == "podman"
        assert install("apptainer", docker=True).find(Container("train"))[0] == "apptainer"
        assert install(docker=True).find(Container("train", "docker"))[0] == "docker"

    def test_a_node_without_the_runtime_cannot_start_it(self, install: Callable[..., ContainerRules]):
        rules = install()
        with pytest.raises(OrderRefused, match="this node has no apptainer or podman, which the image train needs"):
            rules.find(Container("train"))
        with pytest.raises(OrderRefused, match="this node has no apptainer, which"):
            install("podman").find(Container("/images/train.sif"))
        with pytest.raises(OrderRefused, match="this node has no apptainer, which"):
            rules.find(Container("train", "apptainer"))

    def test_docker_needs_the_operators_consent(self, install: Callable[..., ContainerRules]):
        rules = install("docker", docker=False)
        with pytest.raises(OrderRefused, match="docker is not allowed on this node: start its agent with --allow-docker"):
            rules.find(Container("train", "docker"))
        with pytest.raises(OrderRefused, match="no apptainer or podman, which"):
            rules.find(Container("train"))

    def test_mounts_are_below_the_operators_folders_also_behind_links(
        self, install: Callable[..., ContainerRules], tmp_path: Path
    ):
        data, secret = tmp_path / "data", tmp_path / "secret"
        for folder in (data, secret, tmp_path / "database"):
            folder.mkdir()
        (data / "link").symlink_to(secret)
        rules = install("podman", mounts=(str(data), "/project"))
        command(rules, Container("train", mounts=(Mount(f"{data}/set", "/set"), Mount(str(data), "/data"))))
        for source in (secret, data / "link", data / ".." / "secret", tmp_path / "database", tmp_path, Path("/")):
            with pytest.raises(OrderRefused, match="cannot be mounted here: this node allows"):
                command(rules, Container("train", mounts=(Mount(str(source), "/x"),)))
        with pytest.raises(OrderRefused, match="/project cannot be mounted here: this node allows no folders"):
            command(replace(rules, mounts=()), Container("train"))

    def test_options_of_an_agent(self):
        assert ContainerRules.parse(None, docker=False).mounts is None
        assert ContainerRules.parse("/data, /scratch", docker=True) == ContainerRules(("/data", "/scratch"), True)
        assert ContainerRules.parse("", docker=False).mounts == ()
        with pytest.raises(InputError, match="absolute paths with commas between them"):
            ContainerRules.parse("data", docker=False)


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestLaunches:
    def test_a_job_runs_in_its_container_and_its_end_and_output_are_its_own(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], tmp_path: Path, runtime: str
    ):
        node = make_node(AgentSettings(containers=install(runtime)))
        launch = node.launch(
            in_container(
                f"{SHOW}; raise SystemExit(7)", environment={"SEED": "5", "A": "1"}, container={"environment": {"A": "2"}}
            )
        )
        end = node.ended(launch)
        assert (end.code, end.yielded, end.why) == (7, False, "worker 0 ended with status 7")
        seen = json.loads(node.printed(launch))
        home = str(node.directory(launch) / "home")
        assert (seen["SEED"], seen["A"], seen["RANK"], seen["HOME"]) == ("5", "2", "0", home)
        assert seen["cwd"] == str(node.directory(launch) / "work")
        assert "LD_LIBRARY_PATH" not in seen
        assert [call["words"] for call in calls(tmp_path, runtime) if "rm" in call["words"]] == []

    @pytest.mark.skipif(not ROOT, reason="only root can give a job a root folder of its own")
    def test_a_job_sees_what_it_needs_and_nothing_else_of_the_node(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], tmp_path: Path, runtime: str
    ):
        data = tmp_path / "data"
        data.mkdir()
        (data / "set").write_text("numbers")
        script = f"""
import json, os
from pathlib import Path
import fairlead.client
def writes(path):
    try: Path(path).write_text("x")
    except OSError: return False
    return True
for step in fairlead.client.lease(range(3), save=lambda folder: (folder / "saved").write_text("x")):
    fairlead.client.report(loss=step)
print(json.dumps({{
    "data": Path("/mnt/set").read_text(), "data is open": writes("/mnt/other"),
    "out": writes("here"), "home": writes(Path.home() / "x"),
    "others": os.path.exists({str(tmp_path / "programs")!r}), "client": fairlead.client.__file__,
    "jobs": os.listdir({str(tmp_path / "root" / "jobs" / "1" / "1")!r}),
}}))
"""
        node = make_node(AgentSettings(containers=install(runtime)))
        mounts = {"mounts": (Mount(str(data), "/mnt", read_only=True),)}
        launch = node.launch(in_container(script, container=mounts, outputs=("here",)))
        end = node.ended(launch)
        assert end.code == 0, node.printed(launch)
        seen = json.loads(node.printed(launch))
        assert sorted(seen.pop("jobs")) == ["0", "home", "work"]
        assert seen.pop("client").startswith("/.fairlead/fairlead/")
        assert seen == {"data": "numbers", "data is open": False, "out": True, "home": True, "others": False}
        assert (end.steps, end.saved) == (3, 3)
        assert ("loss", 2.0) in node.metrics()
        assert (node.directory(launch).parent / "checkpoints" / "step-3" / "saved").exists()
        assert node.supervisor.read_output(1, 1, "here", 0, 10) == b"x"

    @pytest.mark.skipif(not ROOT, reason="only root runs jobs as other users")
    def test_a_runtime_runs_as_the_jobs_user(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], tmp_path: Path
    ):
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o711)
            rules = install("podman")
            program = Path(place, "podman")
            program.write_text(Path(rules.path or "", "podman").read_text())
            program.chmod(0o755)
            Path(f"{program}.calls").touch()
            os.chmod(f"{program}.calls", 0o666)
            nobody = User.named("nobody")
            node = make_node(AgentSettings(user=nobody, containers=replace(rules, path=place)), root=Path(place, "root"))
            launch = node.launch(in_container("import os; print(os.getuid(), os.path.exists('/.fairlead'))"))
            assert node.ended(launch).code == 0, node.printed(launch)
            [call] = [json.loads(line) for line in Path(f"{program}.calls").read_text().splitlines()]
        assert call["user"] == nobody.uid
        assert f"--user={nobody.uid}:{nobody.gid}" in call["words"]
        assert "--userns=keep-id" in call["words"]

    def test_a_plain_job_gets_sigterm_through_its_runtime(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], runtime: str
    ):
        node = make_node(AgentSettings(containers=install(runtime)))
        launch = node.starts(in_container(SAVES_AT_SIGTERM, cooperative=False))
        node.revoke(launch)
        end = node.ended(launch)
        assert (end.code, end.yielded) == (0, True)
        assert node.printed(launch) == "up\nsaved\n"

    def test_a_lease_in_a_container_is_revoked_by_its_page(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], runtime: str
    ):
        node = make_node(AgentSettings(containers=install(runtime)))
        launch = node.starts(in_container(WAITS_FOR_ITS_LEASE))
        node.revoke(launch)
        end = node.ended(launch)
        assert (end.code, end.yielded) == (0, True)

    def test_a_killed_job_leaves_no_process_also_below_a_daemon(
        self,
        make_node: Callable[..., Node],
        install: Callable[..., ContainerRules],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        runtime: str,
    ):
        node = make_node(AgentSettings(containers=install(runtime)))
        # Shims read it when they start: the call of a runtime that is slow to start would not be noted.
        patience = f"from fairlead.runtime.agent import processes\nprocesses._REMOVE_WITHIN_S = {PATIENCE_S}\n"
        (tmp_path / "sitecustomize.py").write_text(patience)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        launch = node.starts(in_container(HAS_A_CHILD))
        assert len(node.workers(launch)) >= 2
        node.kill(launch)
        assert node.ended(launch).code == -9
        assert node.workers(launch) == []
        removed = [call["words"][-1] for call in calls(tmp_path, runtime) if "rm" in call["words"]]
        assert len(removed) == (runtime != "apptainer")
        assert all(name.startswith("fairlead-1-1-0-") for name in removed)

    def test_a_container_ends_with_its_shim(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], runtime: str
    ):
        """Nothing of it is a child of the shim with a daemon, and the agent finds it by its variables."""
        node = make_node(AgentSettings(containers=install(runtime)))
        launch = node.starts(in_container(RUNS_FOREVER))
        pids = node.workers(launch)
        shim = node.supervisor.running()[0].workers[0].shim
        assert shim is not None
        os.kill(shim.pid, 9)
        end = node.ended(launch)
        assert (end.code, end.why) == (-9, "worker 0: its supervisor process was killed")
        assert [pid for pid in pids if (found := find_process(pid)) is not None and not found.dead] == []

    @pytest.mark.parametrize("runtime", ["podman", "docker"])
    def test_an_image_that_cannot_be_had_is_the_reason(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules], runtime: str
    ):
        node = make_node(AgentSettings(containers=install(runtime)))
        launch = node.launch(in_container(SHOW, image="missing"))
        end = node.ended(launch)
        assert (end.code, end.why, end.could_not_start) == (125, f"worker 0: {NO_CONTAINER}", False)
        assert "no such image" in node.printed(launch)

    def test_a_node_without_a_runtime_starts_nothing_and_keeps_nothing(
        self, make_node: Callable[..., Node], install: Callable[..., ContainerRules]
    ):
        node = make_node(AgentSettings(containers=install()))
        with pytest.raises(OrderRefused, match="this node has no apptainer or podman"):
            node.launch(in_container(SHOW))
        assert not list((node.root / "jobs").iterdir())
        assert not node.supervisor.running()

    def test_a_job_in_the_root_folder_is_refused(self, make_node: Callable[..., Node], install: Callable[..., ContainerRules]):
        node = make_node(AgentSettings(containers=install("podman")))
        with pytest.raises(OrderRefused, match="the directory of the job cannot be /"):
            node.launch(in_container(SHOW, directory="/"))


def test_an_agent_of_a_former_version_does_not_run_it_outside_its_container() -> None:
    """It knows no `container`; the prefix, which it runs, is no program."""
    from fairlead.runtime.protocol.task_file import TaskSpec, task_of

    task = task_of(TaskSpec(run=["true"], container="train", prefix=["nice"]).job("a", "ann"))
    assert task.command == ("nice", "true")
    with pytest.raises(FileNotFoundError, match="too old for containers"):
        subprocess.run([*task.prefix, *task.command])
    assert task.on_engine(runs_images=True).container is None
    assert task.on_engine(runs_images=True).prefix == ()
    assert task.on_engine(runs_images=False).container == Container("train")


@pytest.mark.skipif(
    "FAIRLEAD_TEST_PODMAN" not in os.environ, reason="FAIRLEAD_TEST_PODMAN names no podman (a program and an image)"
)
class TestPodman:
    """Podman itself: FAIRLEAD_TEST_PODMAN="/usr/bin/podman IMAGE", an image into which this machine's programs are mounted."""

    @pytest.fixture
    def rules(self) -> ContainerRules:
        return ContainerRules(path=str(Path(os.environ["FAIRLEAD_TEST_PODMAN"].split()[0]).parent))

    def launch(self, script: str, **more: Any) -> Launch:
        system = tuple(Mount(path, path, read_only=True) for path in ("/usr", "/lib", "/lib64") if os.path.exists(path))
        about = {"mounts": system, "runtime": "podman", "environment": {"PATH": "/usr/bin:/bin"}}
        return in_container(script, os.environ["FAIRLEAD_TEST_PODMAN"].split()[1], container=about, **more)

    def end_of(self, node: Node, launch: Launch) -> Ended:
        end = node.ended(launch)
        assert node.workers(launch) == []
        _, program = node.settings.containers.find(Container("", "podman"))
        listed = subprocess.run([program, "ps", "--all", "--quiet"], capture_output=True, text=True, timeout=PATIENCE_S)
        assert listed.stdout == ""
        return end

    def test_a_job_with_a_lease_trains_saves_and_fails_by_itself(self, make_node: Callable[..., Node], rules: ContainerRules):
        script = """
import os, fairlead.client
for step in fairlead.client.lease(range(3), save=lambda folder: (folder / "saved").write_text("x")):
    fairlead.client.report(loss=step)
print(os.getuid(), os.getcwd(), os.path.exists("/home"), flush=True)
raise SystemExit(3)
"""
        node = make_node(AgentSettings(containers=rules))
        launch = node.launch(self.launch(script))
        end = self.end_of(node, launch)
        assert end.code == 3, node.printed(launch)
        assert (end.steps, end.saved) == (3, 3)
        assert node.printed(launch) == f"{os.getuid()} {node.directory(launch) / 'work'} False\n"

    def test_sigterm_reaches_a_plain_job(self, make_node: Callable[..., Node], rules: ContainerRules):
        node = make_node(AgentSettings(containers=rules))
        launch = node.starts(self.launch(RUNS_FOREVER, cooperative=False))
        node.revoke(launch)
        end = self.end_of(node, launch)
        assert (end.code, end.yielded) == (0, True)

    def test_a_killed_job_is_gone(self, make_node: Callable[..., Node], rules: ContainerRules):
        node = make_node(AgentSettings(containers=rules))
        launch = node.starts(self.launch(IGNORES_SIGTERM))
        node.kill(launch)
        assert self.end_of(node, launch).code == -9

    def test_an_image_that_does_not_exist_is_the_reason(self, make_node: Callable[..., Node], rules: ContainerRules):
        node = make_node(AgentSettings(containers=rules))
        launch = node.launch(in_container(SHOW, "localhost/no-such-image:1", container={"runtime": "podman"}))
        assert self.end_of(node, launch).why == f"worker 0: {NO_CONTAINER}"
