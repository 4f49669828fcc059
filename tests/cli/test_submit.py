"""`fairlead submit`, `wait` and `logs -f` on a real cluster: options, job scripts, shell commands, arrays and results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_up import cluster_up
from command import Done, answer, fairlead

from fairlead.api.connection import ClusterConnection, connect
from fairlead.core.errors import InputError
from fairlead.runtime.protocol.code_archive import pack_code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("cluster")
    with cluster_up(place, cluster="2xv100:2"):
        yield place


def follow(folder: Path, *words: object) -> Done:
    """Submit a job and wait for its end; its output is standard output without the first line."""
    done = fairlead("submit", "--follow", *words, cwd=folder)
    return Done(done.returncode, done.stdout.partition("\n")[2], done.stderr)


def test_a_command_in_quotes_runs_in_a_shell_and_its_result_is_the_exit_code(folder):
    done = follow(folder, "echo one && echo two $((1+1)); exit 0")
    assert (done.returncode, done.stdout) == (0, "one\ntwo 2\n")
    done = follow(folder, "--retries", 0, "echo one && false && echo two")
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert "is failed: worker 0 ended with status 1" in done.stderr


def test_words_after_the_dashes_are_a_program_without_a_shell(folder):
    assert follow(folder, "--name", "words", "--", "echo", "$HOME", "&&", "a b").stdout == "$HOME && a b\n"
    assert "  command           echo '$HOME' '&&' 'a b'\n" in fairlead("info", "words", cwd=folder).stdout
    assert follow(folder, "--name", "line", "echo $((1+1)) 'a b'").stdout == "2 a b\n"
    assert "  command           echo $((1+1)) 'a b'\n" in fairlead("info", "line", cwd=folder).stdout


def test_variables_directory_and_output_are_options(folder, monkeypatch: pytest.MonkeyPatch):
    place = folder / "elsewhere"
    place.mkdir()
    line = "echo $SEED $WORD; pwd; echo error >&2"
    done = follow(
        folder, "--name", "named", "--env", "SEED=1", "--env", "WORD=a b", "--dir", place, "--output", "%x-%t.txt", line
    )
    assert (done.returncode, done.stdout) == (0, f"1 a b\n{place}\nerror\n")
    assert (place / "named-0.txt").read_text() == done.stdout


def test_a_task_file_takes_durations_and_numbers_in_env(folder):
    (folder / "task.yaml").write_text("run: echo $SEED $FAIRLEAD_GENERATION\nname: filed\nenv: {SEED: 7}\ntime_limit: 2h\n")
    assert follow(folder, "task.yaml").stdout == "7 1\n"
    done = fairlead("submit", "task.yaml", "--name", "slow", "--time", "10m", "--wait", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = fairlead("submit", "--time", "1s", "--retries", 0, "--wait", "--name", "limited", "--", "sleep", 600, cwd=folder)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "limited is failed")
    for wrong in ("soon", "-3", "2x", "1:2:3:4"):
        assert fairlead("submit", "--time", wrong, "--", "true", cwd=folder).returncode == 2


def test_a_job_script_is_sent_along_and_options_of_the_command_line_win(folder):
    script = folder / "train.sh"
    script.write_text(
        "#!/usr/bin/env bash\n#FAIRLEAD --gpus 2 --name scripted --env A=1 --env B=2\n#FAIRLEAD --time 90m\n"
        'echo "$0 $1 $A $B $WORLD_SIZE"\n#FAIRLEAD --workers 9\n'
    )
    [submitted] = answer("submit", script, "word", "--env", "B=3", cwd=folder)["jobs"]
    script.unlink()
    assert fairlead("wait", "scripted", cwd=folder).returncode == 0
    assert fairlead("logs", "scripted", cwd=folder).stdout == "train.sh word 1 3 2\n"
    job = answer("info", submitted["number"], cwd=folder)
    assert (job["workers"], job["kind"]) == (2, "train.sh")


def test_a_script_of_slurm_runs_and_what_is_ignored_is_named(folder):
    (folder / "batch.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --job-name=slurm\n#SBATCH --gres=gpu:1 -t 10\n#SBATCH --array=1-2%1\n#SBATCH --mail-type=END\n"
        "#SBATCH --partition gpu\n\necho $SLURM_ARRAY_TASK_ID of $SLURM_NTASKS; missing_command; echo end\n"
    )
    done = fairlead("submit", "batch.sbatch", "--wait", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "ignored #SBATCH options: --mail-type (no mail is sent), --partition (no partitions here)" in done.stderr
    assert "the number of jobs at once is not limited" in done.stderr
    assert done.stdout.startswith("slurm (2 jobs: slurm-1 to slurm-2, numbers ")
    printed = fairlead("logs", "slurm-2", cwd=folder).stdout
    assert printed.startswith("2 of 1\n")
    assert "line 8: missing_command: command not found" in printed


def test_a_script_of_slurm_finds_its_variables_and_names_its_output_as_there(folder):
    names = "JOB_NAME ARRAY_JOB_ID ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX NNODES JOB_NUM_NODES NODEID"
    names += " SUBMIT_DIR GPUS_ON_NODE CPUS_PER_TASK"
    (folder / "names.sh").write_text(
        "#!/bin/sh -eu\n#SBATCH --job-name=names -c 2 --array=3,5 --output=%x_%A_%a.%3a.%%j.out\n#SBATCH --cpus-per-task=2\n"
        f"for name in {names}; do eval echo \\$SLURM_$name; done; echo ${{SLURM_RESTART_COUNT-first}}\n"
    )
    first, second = answer("submit", "names.sh", cwd=folder)["jobs"]
    assert fairlead("wait", "names", cwd=folder).returncode == 0
    number, place = str(first["number"]), str(folder)
    expected = ["names", number, "5", "2", "3", "5", "1", "1", "0", place, "1", "2", "first"]
    assert (folder / f"names_{number}_5.005.%j.out").read_text().split() == expected
    assert (folder / f"names_{number}_3.003.%j.out").is_file()
    assert second["number"] == first["number"] + 1
    (folder / "alone.sh").write_text("#!/bin/bash\n#SBATCH -J alone -o %x-%j.%u.%N.out\necho ${SLURM_ARRAY_TASK_ID-none}\n")
    [alone] = answer("submit", "alone.sh", cwd=folder)["jobs"]
    assert fairlead("wait", "alone", cwd=folder).returncode == 0
    [written] = folder.glob(f"alone-{alone['number']}.*.{os.uname().nodename.partition('.')[0]}.out")
    assert written.read_text() == "none\n"


def test_a_dry_run_of_a_script_says_what_would_be_sent(folder):
    (folder / "dry.sh").write_text("#!/bin/bash\n#SBATCH -J dry --array=0-2 -t 30 --export=A=1 --qos=high\ntrue\n")
    done = fairlead("submit", "--dry-run", "dry.sh", "--env", "B=2", cwd=folder)
    line = "dry: 3 jobs, workers: 1, time limit 30.0 min, environment: A, B; can run on v100\n"
    assert (done.returncode, done.stdout) == (0, line)
    assert "dry.sh: ignored #SBATCH options: --qos (no QOS here)" in done.stderr


def test_an_option_of_the_job_belongs_after_the_dashes(folder):
    done = fairlead("submit", "python", "x.py", "--lr", "0.1", cwd=folder)
    assert done.returncode == 2
    assert "No such option: --lr; put the job's own options after --: fairlead submit -- python x.py --lr 0.1" in done.stderr
    assert "after --\n" in fairlead("submit", "--gpus", 2, "python", "x.py", "--xyz", cwd=folder).stderr
    assert "did you mean --time or --retries?" in fairlead("submit", "--tiem", "2h", "x.sh", cwd=folder).stderr


def test_a_grid_is_many_jobs_with_their_values(folder):
    line = "echo {lr} $LR {word} $FAIRLEAD_ARRAY_INDEX"
    done = fairlead("submit", "--name", "grid", "--grid", "lr=0.1,0.01", "--grid", "word=a;b,c", line, "--wait", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [fairlead("logs", f"grid-{n}", cwd=folder).stdout for n in range(4)] == [
        "0.1 0.1 a;b 0\n",
        "0.1 0.1 c 1\n",
        "0.01 0.01 a;b 2\n",
        "0.01 0.01 c 3\n",
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--", "no-such-program"), "cannot run 'no-such-program'"),
        (("no-such-program",), "cannot run 'no-such-program'"),
        (("--dir", "/no/such/place", "--", "true"), "there is no directory /no/such/place on this node"),
        (("--", "./plain.txt"), "Permission denied"),
    ],
)
def test_a_command_that_can_never_be_executed_fails_once_with_the_reason(folder, words, why):
    (folder / "plain.txt").write_text("x")
    done = fairlead("submit", "--json", "--wait", *words, cwd=folder)
    assert done.returncode == 1
    [job] = answer("queue", "--state", "failed", cwd=folder)["jobs"][-1:]
    assert (job["starts"], job["failures"]) == (1, 1)
    assert why in job["reason"]["text"]
    assert "not retried" in fairlead("why", job["number"], cwd=folder).stdout


def test_an_array_is_followed_with_names_and_ends_with_the_result_of_all(folder):
    line = "echo one; echo two; exit $FAIRLEAD_ARRAY_INDEX"
    done = fairlead("submit", "--name", "many", "--array", 2, "--retries", 0, "--follow", line, cwd=folder)
    lines = [f"[many-{n}] {word}" for n in range(2) for word in ("one", "two")]
    assert (done.returncode, sorted(done.stdout.splitlines()[1:])) == (1, lines)
    assert "many-1 is failed" in done.stderr
    assert fairlead("logs", "-f", "many[0]", cwd=folder).returncode == 0


def test_waiting_ends_with_the_result_of_all_and_gives_up_in_time(folder):
    started = fairlead("submit", "--name", "long", "--array", "0-1", "--", "sleep", 600, cwd=folder)
    assert started.stdout.startswith("long (2 jobs: long-0 to long-1")
    done = fairlead("wait", "long", "--timeout", "0.2s", cwd=folder)
    assert (done.returncode, "not ended within 0.2 s: long-0, long-1" in done.stderr) == (1, True)
    cancelled = fairlead("cancel", "long", cwd=folder)
    assert (cancelled.returncode, cancelled.stdout) == (0, "long: 2 jobs are cancelled\n")
    assert fairlead("wait", "long-*", cwd=folder).returncode == 1
    assert fairlead("wait", "nothing", cwd=folder).returncode == 3
    assert fairlead("cancel", "long", cwd=folder).returncode == 4
    assert fairlead("cancel", cwd=folder).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--env", "NOT_SET_HERE", "--", "true"),
        ("--grid", "lr", "--", "true"),
        ("--grid", "lr=1", "--grid", "LR=2", "--", "true"),
        ("--time", "0", "--", "true"),
        ("--time", "-5", "--", "true"),
        ("--min-run", "-5", "--", "true"),
        ("--deadline", "-1h", "--", "true"),
        ("--array", "3-1", "--", "true"),
        ("--grid", "lr=1,2", "--env", "LR=3", "--", "true"),
        (),
    ],
)
def test_what_cannot_be_meant_is_an_error_of_usage(folder, words):
    assert fairlead("submit", *words, cwd=folder).returncode == 2


def test_an_array_with_a_grid_is_refused_in_plain_words(folder):
    done = fairlead("submit", "--array", 3, "--grid", "lr=1,2", "--", "true", cwd=folder)
    assert done.stderr.startswith("fairlead: error: command line: expected either an array or a grid, not both;")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_job_that_can_never_run_is_refused(folder):
    for more in ((), ("--dry-run",)):
        done = fairlead("submit", "--gpus", 99, *more, "--", "true", cwd=folder)
        assert (done.returncode, "can never run on this cluster" in done.stderr) == (4, True)


def test_a_gpu_type_that_may_be_misspelt_is_named_with_those_that_are_near(folder):
    done = fairlead("submit", "--types", "v10,v100,a100", "--dry-run", "--", "true", cwd=folder)
    assert (done.returncode, "can run on v100" in done.stdout) == (0, True)
    assert done.stderr.startswith("types: unknown GPU type 'v10'; did you mean 'v100'")
    assert "'a100';" not in done.stderr
    done = fairlead("submit", "--types", "V100", "--", "true", cwd=folder)
    assert (done.returncode, "'V100'; did you mean 'v100'" in done.stderr) == (4, True)


def test_waiting_shows_what_the_job_waits_for(folder):
    assert fairlead("submit", "--name", "holds", "--", "sleep", 600, cwd=folder).returncode == 0
    assert fairlead("submit", "--name", "held", "--after", "holds", "--", "true", cwd=folder).returncode == 0
    done = fairlead("wait", "held", "--timeout", "1s", cwd=folder)
    assert done.stderr.splitlines()[0] == "held waits: Waiting until holds has finished"
    assert fairlead("wait", "held", "--timeout", "0.1s", "--json", cwd=folder).stderr.count("\n") == 1
    assert fairlead("cancel", "holds", "held", cwd=folder).returncode == 0


def test_an_array_is_one_row_and_one_object(folder):
    line = "if [ $FAIRLEAD_ARRAY_INDEX = 1 ]; then exit 3; elif [ $FAIRLEAD_ARRAY_INDEX = 2 ]; then sleep 600; fi"
    assert fairlead("submit", "--name", "sweep", "--array", 3, "--retries", 0, line, cwd=folder).returncode == 0
    assert fairlead("wait", "sweep[0-1]", cwd=folder).returncode == 1
    rows = [row for row in fairlead("queue", cwd=folder).stdout.splitlines() if "sweep" in row]
    assert len(rows) == 1
    assert "3 jobs: " in rows[0]
    assert "1 finished, 1 failed" in rows[0]
    expanded = fairlead("queue", "--expand", cwd=folder).stdout
    assert ("sweep-2" in expanded, "sweep-1" in expanded) == (True, False)
    whole = answer("info", "sweep", cwd=folder)
    assert (whole["jobs"], whole["phases"]["finished"], whole["failed"], len(whole["members"])) == (3, 1, ["sweep-1"], 3)
    assert "1 finished, 1 failed" in fairlead("info", "sweep", cwd=folder).stdout
    assert "sweep, member 1 of 3" in fairlead("info", "sweep-1", cwd=folder).stdout
    cancelled = fairlead("cancel", "sweep-2", cwd=folder).stdout
    assert cancelled == f"sweep-2 (number {whole['members'][2]['number']}) is cancelled\n"
    logs = fairlead("logs", "sweep", cwd=folder)
    assert (
        logs.returncode,
        {line.split("]")[0] for line in logs.stdout.splitlines()} <= {f"[sweep-{n}" for n in range(3)},
    ) == (0, True)


def test_declared_outputs_are_kept_and_brought_back(folder, tmp_path: Path):
    place = folder / "trained"
    place.mkdir()
    line = (
        "mkdir -p logs/deep && head -c 600000 /dev/zero > model.pt && echo a,b > logs/deep/x.csv && echo no > other.txt"
        " && ln -s /etc/hostname link.csv"
    )
    options = ("--name", "trained", "--dir", place, "--outputs", "model.pt", "--outputs", "**/*.csv", "--outputs", "absent")
    assert fairlead("submit", *options, line, "--wait", cwd=folder).returncode == 0
    (place / "model.pt").write_text("changed later")
    done = fairlead("fetch", "trained", "--to", tmp_path / "to", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "left out link.csv: a link" in done.stderr
    assert "left out absent: nothing matches it" in done.stderr
    found = sorted(str(file.relative_to(tmp_path / "to")) for file in (tmp_path / "to").rglob("*") if file.is_file())
    assert found == ["logs/deep/x.csv", "model.pt"]
    assert (tmp_path / "to" / "model.pt").stat().st_size == 600_000


def test_each_member_of_an_array_has_a_folder_of_its_own(folder, tmp_path: Path):
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("import os; open('out.txt', 'w').write(os.environ['FAIRLEAD_ARRAY_INDEX'])")
    (folder / "kept.yaml").write_text("run: python train.py\nname: kept\ncode: code\narray: 0-1\noutputs: out.txt\n")
    assert fairlead("submit", "kept.yaml", "--wait", cwd=folder).returncode == 0
    done = answer("fetch", "kept", "--to", tmp_path, cwd=folder)
    assert [job["name"] for job in done["jobs"]] == ["kept-0", "kept-1"]
    assert [(tmp_path / f"kept-{n}" / "out.txt").read_text() for n in (0, 1)] == ["0", "1"]


def test_what_was_not_kept_is_an_error(folder, tmp_path: Path):
    assert fairlead("submit", "--name", "plain", "--wait", "--", "true", cwd=folder).returncode == 0
    done = fairlead("fetch", "plain", "--to", tmp_path, cwd=folder)
    assert (done.returncode, "no outputs of plain: it declares no outputs: name files with" in done.stderr) == (1, True)
    place = folder / "renamed"
    place.mkdir()
    options = ("--name", "renamed", "--dir", place, "--outputs", "model.pt", "--outputs", "*.log")
    assert fairlead("submit", *options, "touch model.bin 1.txt", "--wait", cwd=folder).returncode == 0
    done = fairlead("fetch", "renamed", "--to", tmp_path, cwd=folder)
    assert done.returncode == 1
    assert "renamed: model.pt: nothing matches it; the job's directory has 1.txt, model.bin" in done.stderr
    for wrong in ("/etc/passwd", "../x", "a/../../b"):
        assert fairlead("submit", "--outputs", wrong, "--", "true", cwd=folder).returncode == 2


def test_the_python_api_submits_arrays_waits_and_fetches(folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    cluster = connect()
    jobs = cluster.submit_array(
        "echo $SEED > out.txt", grid={"seed": [3, 4]}, name="api", code=_sent(cluster, tmp_path), outputs="*.txt"
    )
    assert [job.wait(60, 0.1)["phase"] for job in jobs] == ["finished"] * 2
    assert [[file.read_text() for file in job.fetch(tmp_path / job.name)] for job in jobs] == [["3\n"], ["4\n"]]
    with pytest.raises(InputError, match="submit_array"):
        cluster.submit("true", array=2)


def _sent(cluster: ClusterConnection, folder: Path) -> str:
    (folder / "code").mkdir()
    (folder / "code" / "readme").write_text("code")
    return cluster.client.send_code(pack_code(folder / "code"))


def test_a_script_that_never_saves_gets_a_note_under_a_policy_that_preempts(folder):
    (folder / "plain.py").write_text("print('no checkpoints')\n")
    (folder / "saves.py").write_text("import fairlead\n")
    told = "note: the policy 'las' preempts jobs; a script without checkpoints starts again each time (--min-run protects it)\n"
    plain = ("--", "python", "plain.py")
    assert fairlead("submit", *plain, cwd=folder).stderr == told
    (folder / "leases.py").write_text("import fairlead\nfor step in fairlead.lease(range(9)):\n    print(step)\n")
    assert fairlead("submit", "--", "python", "leases.py", cwd=folder).stderr == told
    (folder / "sent").mkdir()
    (folder / "sent" / "inner.py").write_text("print('no checkpoints')\n")
    (folder / "inner.py").write_text("import fairlead\nfairlead.lease(range(9), save=print)\n")
    assert fairlead("submit", "--code", "sent", "--", "python", "inner.py", cwd=folder).stderr == told
    assert fairlead("submit", "--", "python", "inner.py", cwd=folder).stderr == ""
    for quiet in (("--json", *plain), ("--min-run", "1h", *plain), ("--", "python", "saves.py"), ("--", "true")):
        assert fairlead("submit", *quiet, cwd=folder).stderr == ""
    assert fairlead("scheduler", "set", "--policy", "fifo", cwd=folder).returncode == 0
    assert fairlead("submit", *plain, cwd=folder).stderr == ""
