"""Job scripts: which options their `#SBATCH` lines mean, and what is said about the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cli.script_lines import SLURM_VARIABLES, read_script, saves_nothing
from fairlead.core.errors import InputError


def script(folder: Path, *lines: str, first: str = "#!/bin/bash", name: str = "job.sh"):
    (folder / name).write_text("\n".join([first, *lines, "true", ""]))
    return read_script(str(folder / name))


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (["--job-name='a b'"], ["--name", "a-b"]),
        (["-J train -t 1-02:00:00"], ["--name", "train", "--time", "93600s"]),
        (["-t 90"], ["--time", "5400s"]),
        (["--time=UNLIMITED"], []),
        (["--gpus=4"], ["--workers", "4"]),
        (["-G a100:2"], ["--types", "a100", "--workers", "2"]),
        (["--gres=gpu:v100:2", "--nodes=2"], ["--types", "v100", "--workers", "4"]),
        (["--gpus-per-node=4 -N 2 --ntasks-per-node=1"], ["--workers", "8"]),
        (["--ntasks=3"], ["--workers", "3"]),
        (["--nodes=2", "--ntasks-per-node=4"], ["--workers", "8"]),
        (["--ntasks=2 --gpus-per-task=2"], ["--workers", "4"]),
        (["--mem=16G"], ["--host-memory-gb", "16"]),
        (["--mem=16384 --gpus=4"], ["--workers", "4", "--host-memory-gb", "4"]),
        (["-c 8"], ["--cpus", "8"]),
        (["--cpus-per-task=2 --mem-per-cpu=4G"], ["--cpus", "2", "--host-memory-gb", "8"]),
        (["--array=0-9:3"], ["--array", "0-9:3"]),
        (["-a 5"], ["--array", "5-5"]),
        (["-o logs/%A_%a.out"], ["--output", "logs/%A_%a.out"]),
        (["--chdir /data --account=lab"], ["--dir", "/data", "--account", "lab"]),
        (["--export=NONE,A=1"], ["--env", "A=1"]),
        (["--dependency=afterok:12:13"], ["--after", "12", "--after", "13"]),
        (["--requeue"], []),
        (["--no-requeue"], ["--retries", "0"]),
        (["--nice=50"], ["--priority", "-50"]),
        (["--nice=-5"], ["--priority", "5"]),
        (["--nice"], ["--priority", "-100"]),
        (["--priority=10"], ["--priority", "10"]),
    ],
)
def test_common_options_of_slurm_are_translated(tmp_path: Path, lines, options):
    found = script(tmp_path, *(f"#SBATCH {line}" for line in lines))
    assert (list(found.options), found.warnings) == (options, ())


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        (
            "--partition=gpu --mail-type ALL --exclusive",
            "ignored #SBATCH options: --exclusive, --mail-type (no mail is sent), --partition (no partitions here)",
        ),
        ("--tiem=2:00:00", "unknown #SBATCH option --tiem is ignored; did you mean --time?"),
        ("-Z 3", "unknown #SBATCH option -Z is ignored"),
        ("--error=e.txt --output=o.txt", "standard error goes to the same file"),
        ("--dependency=afterany:3", "a job can wait with afterok only"),
        ("--export=ALL", "name variables with --env"),
    ],
)
def test_what_has_no_counterpart_is_a_warning(tmp_path: Path, line, warning):
    [said] = script(tmp_path, f"#SBATCH {line}").warnings
    assert warning in said


def test_srun_is_warned_about(tmp_path: Path):
    [said] = script(tmp_path, "#SBATCH -n 2", "srun python train.py").warnings
    assert "without srun" in said


def test_a_script_runs_in_its_shell_and_keeps_its_lines(tmp_path: Path):
    plain = script(tmp_path, "#FAIRLEAD --gpus 2 --name 'a b'", first="#!/bin/sh -e")
    assert plain.options == ("--gpus", "2", "--name", "a b")
    assert plain.command(["x"])[:3] == ["sh", "-e", "-c"]
    assert plain.command(["x"])[-2:] == ["job.sh", "x"]
    slurm = script(tmp_path, "#SBATCH -n 1", first="#!/usr/bin/env bash")
    assert slurm.shell == ("bash",)
    assert slurm.text.splitlines()[0] == f"export SLURM_SUBMIT_DIR={Path.cwd()}; {SLURM_VARIABLES}"
    slurm = script(tmp_path, "#SBATCH -c 6", first="#!/usr/bin/env bash")
    assert f"{Path.cwd()} SLURM_CPUS_PER_TASK=6; export" in slurm.text
    assert len(slurm.text.splitlines()) == 3


@pytest.mark.parametrize("line", ["--time=soon", "--ntasks=two", "--mem=much", "--nice=abc", "word"])
def test_a_line_that_cannot_be_read_is_an_error(tmp_path: Path, line):
    with pytest.raises(InputError, match=r"job\.sh"):
        script(tmp_path, f"#SBATCH {line}")


def test_other_files_are_no_job_scripts(tmp_path: Path):
    assert read_script(str(tmp_path / "absent.sh")) is None
    assert script(tmp_path, name="train.py") is None
    with pytest.raises(InputError, match="a script for bash"):
        script(tmp_path, first="#!/usr/bin/env python3")
    with pytest.raises(InputError, match="--code DIR sends more"):
        script(tmp_path, "#" * 40_000)


def test_a_word_that_is_no_possible_file_name_says_nothing_about_checkpoints(tmp_path: Path):
    assert not saves_nothing({"run": f"python {'x' * 300}.py", "directory": str(tmp_path)}, tmp_path)
