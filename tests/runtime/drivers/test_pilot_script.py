"""`fairlead slurm` without Slurm: the batch script, and programs of Slurm that only write down how they were called."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import UNREACHABLE, FairleadError, InputError, NotFound
from fairlead.runtime.drivers.slurm_pilot import (
    POLL_S,
    WITHOUT_END,
    NoSlurm,
    PilotRequest,
    SlurmError,
    SlurmPrograms,
    batch_script,
    slurm_time,
)
from fairlead.runtime.host import Host
from foundry import free_port

TOKEN = "join-secret-0123456789"
REQUEST = PilotRequest(4, 8, 12 * 3600.0, "login:7421", Path("/home/ann/my work/.fairlead/slurm"), ["fairlead"])


def directives(request: PilotRequest) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in batch_script(request).splitlines() if line.startswith("#SBATCH ")]


def right_shell(script: str) -> bool:
    return subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_script_asks_for_whole_nodes_with_one_agent_each():
    asked = directives(REQUEST)
    assert {"--nodes=4", "--ntasks-per-node=1", "--gres=gpu:8", "--exclusive", "--mem=0", "--time=0-12:00:00"} <= set(asked)
    assert "--signal=B:TERM@60" in asked
    assert "--no-kill" in asked, "a node that fails does not end the others"
    assert right_shell(batch_script(REQUEST))


def test_a_script_has_what_the_user_gives():
    wanted = replace(
        REQUEST,
        gpu_type="a100",
        cpus=32,
        memory_gb=200,
        options={"partition": "gpu", "account": "lab", "qos": "", "constraint": "nvlink&big"},
        lines=["--reservation=course"],
        setup=["module load cuda", "source '/home/ann/my setup.sh'"],
        container="apptainer exec --nv image.sif",
    )
    asked, script = directives(wanted), batch_script(wanted)
    assert {"--gres=gpu:a100:8", "--cpus-per-task=32", "--mem=204800M", "--partition=gpu", "--account=lab"} <= set(asked)
    assert {"--constraint=nvlink&big", "--reservation=course"} <= set(asked)
    assert not [line for line in asked if "qos" in line or "exclusive" in line]
    lines = script.splitlines()
    agent = next(number for number, line in enumerate(lines) if "fairlead agent" in line)
    assert lines[agent].startswith("  exec apptainer exec --nv image.sif fairlead agent --control login:7421")
    assert lines.index("  module load cuda") < lines.index("  source '/home/ann/my setup.sh'") < agent
    assert "--accelerators a100:8" in lines[agent]
    assert "'/home/ann/my work/.fairlead/slurm/agent.token'" in lines[agent]
    assert right_shell(script)


@pytest.mark.parametrize(
    ("overlap_s", "when"),
    [(600.0, "after:$SLURM_JOB_ID+710"), (0.0, "afterany:$SLURM_JOB_ID"), (1e6, "after:$SLURM_JOB_ID+360")],
)
def test_the_next_pilot_of_a_chain_waits_for_this_one(overlap_s: float, when: str):
    script = batch_script(replace(REQUEST, chain=2, overlap_s=overlap_s))
    assert f'--dependency="{when}"' in script
    assert right_shell(script)
    assert "dependency" not in batch_script(REQUEST)


@pytest.mark.parametrize(("given", "passed"), [("2", ["1"]), ("1", ["0"]), ("0", []), ("-1", ["-1"])])
def test_a_chain_counts_down_and_may_have_no_end(given: str, passed: list[str], tmp_path: Path):
    program(tmp_path, "sbatch", 'echo "${@: -1}" >> submitted; echo 7')
    for name in ("squeue", "srun", "scancel"):
        program(tmp_path, name, "true")
    request = replace(REQUEST, folder=tmp_path, chain=WITHOUT_END)
    script = tmp_path / "script.sh"
    script.write_text(batch_script(request))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "6"}
    subprocess.run(["bash", str(script), given], env=environment, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    submitted = tmp_path / "submitted"
    assert (submitted.read_text().split() if submitted.exists() else []) == passed


def test_wrong_values_are_refused_before_anything_is_written():
    with pytest.raises(InputError, match="--time"):
        replace(REQUEST, time_s=30.0)
    with pytest.raises(InputError, match="--partition"):
        replace(REQUEST, options={"partition": "gpu\n#SBATCH --uid=0"})
    with pytest.raises(InputError, match="line breaks"):
        replace(REQUEST, setup=["a\nb"])
    with pytest.raises(InputError, match="--sbatch"):
        replace(REQUEST, lines=["reservation"])
    assert slurm_time(90061) == "1-01:01:01"


class Calls:
    """Answers for programs of Slurm, one after the other; the last one is repeated."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = {name: list(found) for name, found in answers.items()}
        self.words: list[str] = []

    def __call__(self, words: Sequence[str]) -> tuple[int, str, str]:
        self.words.append(" ".join(words))
        found = self.answers.get(words[0], [""])
        return 0, found.pop(0) if len(found) > 1 else found[0], ""


class NoWait(Host):
    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def rows(*found: str, folder: str = "/shared/slurm") -> str:
    return "".join(f"{one}|{folder}\n" for one in found)


RUNS, WAITS = "7|RUNNING|2|2026-11-18T01:00:00|2026-11-18T13:00:00|None", "8|PENDING|2|N/A|N/A|Dependency"


def test_pilots_are_those_of_the_folder():
    calls = Calls(squeue=[rows(RUNS, WAITS) + rows("9|RUNNING|1|N/A|N/A|None", folder="/other")])
    first, second = SlurmPrograms(calls).pilots(Path("/shared/slurm"))
    assert (first.job, first.state, first.nodes, first.reason) == ("7", "RUNNING", 2, "")
    assert first.end - first.start == 12 * 3600  # type: ignore[operator]
    assert (second.job, second.start, second.reason) == ("8", None, "Dependency")
    nodes = [("n1-7", True), ("n2-7", False), ("n3-7r1", True), ("n1-17", True), ("n1-70", True)]
    listed = [{"name": name, "connected": connected, "temporary": True} for name, connected in nodes]
    assert first.joined([*listed, {"name": "rack-7", "connected": True, "temporary": False}]) == 2


def test_down_ends_the_chain_first_and_lets_agents_leave():
    calls = Calls(squeue=[rows(RUNS, WAITS)] * 2 + [rows(RUNS), rows("7|COMPLETED|2|N/A|N/A|None")])
    host, said = NoWait(), list[str]()
    assert SlurmPrograms(calls, host).end(Path("/shared/slurm"), [], said.append) == ["8", "7"]
    assert [words for words in calls.words if words.startswith("scancel")] == [
        "scancel --quiet 8",
        "scancel --quiet --signal=USR1 7",
    ]
    assert host.slept == [POLL_S] * 2
    assert len(said) == 1
    with pytest.raises(NotFound, match="no pilot 9"):
        SlurmPrograms(Calls(squeue=[rows(RUNS)]), host).end(Path("/shared/slurm"), ["9"], said.append)


def test_a_slurm_that_is_away_has_refused_nothing():
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    with pytest.raises(NoSlurm, match=r"does not answer: .*Unable to contact.*; .* continue\. Run 'fairlead") as found:
        SlurmPrograms(lambda words: (1, "", away)).pilots(Path("/shared/slurm"))
    assert found.value.exit_code == UNREACHABLE


def test_status_says_why_a_pilot_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failed = f"7|FAILED|2|N/A|N/A|NonZeroExitCode|{tmp_path}"
    monkeypatch.setattr(SlurmPrograms, "_ask", lambda self, *words: f"{failed}\n")
    (tmp_path / "pilot-7.out").write_text("0: fairlead: error: this token has expired\nsrun: error: n2: task 0\n")
    said = CliRunner().invoke(app, ["slurm", "status", "--folder", str(tmp_path)])
    assert "pilot 7 failed: this token has expired (output: " in " ".join(said.output.split())


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a token, and programs of Slurm that write down how they were called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs, "sbatch", 'env > environment; echo "$@" > words; echo 4711')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAIRLEAD_TOKEN", "user-secret")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".fairlead").mkdir()
    token = tmp_path / ".fairlead" / "agent.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return tmp_path


def up(*words: str) -> str:
    """What `slurm up` prints; raises what it raises. A server listens where the control plane should be."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = CliRunner().invoke(app, ["slurm", "up", "--gpus", "8", "--time", "2h", "--control", address, *words])
    if isinstance(done.exception, FairleadError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_token_is_in_a_private_file_and_nowhere_else(login_node: Path):
    assert up().startswith("pilot 4711: 1 × 8 GPUs for 2h")
    folder = login_node / ".fairlead" / "slurm"
    token = folder / "agent.token"
    assert token.read_text() == TOKEN
    assert token.stat().st_mode & 0o777 == 0o600
    (script,) = folder.glob("pilot-*.sh")
    assert (login_node / "words").read_text() == f"--parsable {script} 0\n"
    written = script.read_text() + (login_node / "environment").read_text()
    assert TOKEN not in written
    assert "user-secret" not in written
    assert "FAIRLEAD_TOKEN" not in (login_node / "environment").read_text(), "Slurm stores the environment"


def test_a_dry_run_prints_the_script_and_writes_nothing(login_node: Path):
    assert up("--dry-run").startswith("#!/bin/bash\n#SBATCH --job-name=fairlead-pilot\n")
    assert not (login_node / "words").exists()
    assert not (login_node / ".fairlead" / "slurm").exists()


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name",
            "Slurm refused the pilot: invalid partition specified: nope; Batch job submission failed: Invalid partition name"
            " ('sinfo --summarize' lists partitions (--partition))",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "sacctmgr show associations",
        ),
        (
            "sbatch: error: Requested node configuration is not available",
            "lists what nodes have (--gpus, --type, --constraint)",
        ),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerUserLimit"),
    ],
)
def test_a_refusal_has_the_words_of_slurm_and_what_to_do(printed: str, said: str, login_node: Path):
    program(login_node / "bin", "sbatch", f"echo {printed!r} | sed 's/\\\\n/\\n/g' >&2; exit 1")
    with pytest.raises(SlurmError, match=re.escape(said)):
        up()


def test_a_machine_without_slurm_says_so(login_node: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(login_node))
    with pytest.raises(NoSlurm, match="no 'sbatch' on this machine: run this on a login node"):
        up()


def test_without_a_control_plane_the_command_that_starts_one_is_printed(login_node: Path):
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(FairleadError, match=rf"no control plane at {gone} .*start one: fairlead serve --agents {gone}"):
        up("--control", gone)
    assert not (login_node / "words").exists()


def test_a_token_that_others_can_read_is_refused(login_node: Path):
    (login_node / ".fairlead" / "agent.token").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        up()
    (login_node / ".fairlead" / "agent.token").unlink()
    with pytest.raises(InputError, match="--token-file"):
        up()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--chain", "never"), "--chain"),
        (("--overlap", "soon"), "--overlap"),
        (("--control", "login:7421"), "--tls-ca; --insecure"),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], said: str, login_node: Path):
    with pytest.raises(InputError, match=re.escape(said)):
        up(*words)


@pytest.mark.parametrize(("connected", "said"), [(1, "pilot-7.out"), (2, ""), (None, "cannot find out which nodes")])
def test_status_names_the_output_where_nodes_are_missing(
    connected: int | None, said: str, login_node: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = login_node / ".fairlead" / "slurm"
    program(login_node / "bin", "squeue", f"printf %s '{rows(RUNS, folder=str(folder))}'")
    if connected is None:
        monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    else:
        nodes = [{"name": f"n{number}-7", "connected": number < connected} for number in range(2)]
        monkeypatch.setattr("fairlead.cli.cmd_slurm.control_plane", lambda: SimpleNamespace(nodes=lambda: nodes))
    done = CliRunner().invoke(app, ["slurm", "status"])
    assert done.exit_code == 0, done.output
    assert "running" in done.stdout
    assert said in done.stderr if said else not done.stderr
