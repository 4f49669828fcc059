"""`fairlead submit --image` and `container:` in a task file, on a cluster whose nodes have a stub of apptainer, or nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_up import LOG, until
from command import answer, fairlead

from foundry import free_port

pytestmark = pytest.mark.long

STUB = Path(__file__).parents[1] / "runtime" / "agent" / "stub_runtime.py"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only folder of programs for jobs; at first it has no container runtime."""
    place = tmp_path_factory.mktemp("programs")
    for name in ("bash", "true"):
        (place / name).symlink_to(str(shutil.which(name)))
    return place


@pytest.fixture(scope="module")
def folder(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("cluster")
    addresses = ("--http", f"127.0.0.1:{free_port()}", "--agents", f"127.0.0.1:{free_port()}")
    command = [sys.executable, "-m", "fairlead.cli.main", "up", "--round", "1", "--cluster", "2xv100:2", *addresses]
    environment = {**os.environ, "PATH": str(programs), "VIRTUAL_ENV": sys.prefix}  # set: the folder of `python` is not added
    with (
        open(place / LOG, "w") as log,
        subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log) as process,
    ):
        until(lambda: process.poll() is not None or fairlead("nodes", "--json", cwd=place).returncode == 0, place)
        yield place
        process.send_signal(signal.SIGINT)


def test_a_job_whose_runtime_is_missing_fails_and_harms_no_other_job(folder: Path):
    for name in ("early", "again"):
        assert fairlead("submit", "--name", name, "--image", "train:1", "--", "true", cwd=folder).returncode == 0
    for name in ("early", "again"):
        until(lambda name=name: fairlead("info", name, "--json", cwd=folder).stdout.count('"failed"'), folder)
        assert "this node has no apptainer or podman" in fairlead("why", name, cwd=folder).stdout
    [node] = answer("nodes", "--json", cwd=folder)["nodes"]
    assert (node["up"], node["backed_off"]) == (True, False)
    assert fairlead("submit", "--name", "plain", "--follow", "--", "true", cwd=folder).returncode == 0


def test_an_image_is_an_option_and_the_keys_of_a_file_say_more(folder: Path, programs: Path):
    program = programs / "apptainer"
    program.write_text(f"#!{os.path.realpath(sys.executable)}\n{STUB.read_text()}")
    program.chmod(0o755)
    script = "import os; print(os.environ['WORD'], os.getcwd(), flush=True)"
    (folder / "task.yaml").write_text(
        f"run: [python3, -c, {script!r}]\nname: filed\ncontainer:\n  image: one\n  workdir: /usr\n  env: {{WORD: 5}}\n"
    )
    done = fairlead("submit", "--follow", "task.yaml", "--image", "two.sif", cwd=folder)
    assert (done.returncode, done.stdout.partition("\n")[2]) == (0, "5 /usr\n"), done.stderr
    assert "  image             two.sif\n" in fairlead("info", "filed", cwd=folder).stdout
    done = fairlead("submit", "--follow", "task.yaml", "--name", "again", "--env", "WORD=6", cwd=folder)
    assert (done.returncode, done.stdout.partition("\n")[2]) == (0, "6 /usr\n"), done.stderr


def test_an_unknown_key_is_named_with_its_line(folder: Path):
    (folder / "wrong.yaml").write_text("run: 'true'\ncontainer:\n  image: one\n  mount: [/data]\n")
    done = fairlead("submit", "wrong.yaml", cwd=folder)
    assert done.returncode == 2
    assert "wrong.yaml:4: field 'mount': expected a known field (did you mean" in done.stderr
