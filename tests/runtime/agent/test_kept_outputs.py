"""Outputs that jobs declare: what is kept, what is left out and why, and that no path leads out of the job's directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from fairlead.runtime.agent import kept_outputs
from fairlead.runtime.agent.kept_outputs import keep_outputs, read_output


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's directory, next to a file that is none of its business."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "job"
    (folder / "logs" / "deep").mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"x" * 10)
    (folder / "logs" / "a.csv").write_text("a")
    (folder / "logs" / "deep" / "b.csv").write_text("bb")
    return folder


def kept(job: Path, *patterns: str) -> tuple[list[str], dict[str, str]]:
    place = job.parent / "outputs"
    keep_outputs(str(job), list(patterns), place, contextlib.nullcontext)
    listed = json.loads(read_output(place, "", 0, 1 << 20))
    for file in listed["files"]:
        assert read_output(place, file["path"], 0, 1 << 20) == (job / file["path"]).read_bytes()
        assert file["size"] == (job / file["path"]).stat().st_size
    assert len(list(place.iterdir())) == len(listed["files"]) + 1, "nothing else is stored"
    return [file["path"] for file in listed["files"]], {one["path"]: one["why"] for one in listed["left_out"]}


def test_a_pattern_finds_files_and_a_folder_means_all_files_in_it(job: Path) -> None:
    files, left_out = kept(job, "*.pt", "logs", "none-*", "logs/*.csv")
    assert files == ["logs/a.csv", "logs/deep/b.csv", "model.pt"]
    assert left_out == {"none-*": "nothing matches it; the job's directory has logs, model.pt"}


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("**/*.csv", ["logs/a.csv", "logs/deep/b.csv"]),
        ("logs/**", ["logs/a.csv", "logs/deep/b.csv"]),
        ("**/deep/**/*.csv", ["logs/deep/b.csv"]),
        ("**/**/**//**/*.csv", ["logs/a.csv", "logs/deep/b.csv"]),
        ("**", ["logs/a.csv", "logs/deep/b.csv", "model.pt"]),
    ],
)
def test_two_stars_mean_any_folders_and_enter_no_links(job: Path, pattern: str, files: list[str]) -> None:
    for name in ("up", "again", "more"):  # followed, these would have more paths than there is time
        (job / "logs" / name).symlink_to("..")
    assert kept(job, pattern)[0] == files


def test_repeated_stars_walk_a_folder_once(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked, walk = list[str](), os.walk

    def counted(top: str) -> object:
        walked.append(top)
        return walk(top)

    monkeypatch.setattr(kept_outputs.os, "walk", counted)
    assert kept(job, "**/" * 9 + "*.csv")[0] == ["logs/a.csv", "logs/deep/b.csv"]
    assert len(walked) == 2, "once for the pattern, and once to name what is there"


def test_a_name_that_is_no_text_is_left_out(job: Path) -> None:
    os.close(os.open(os.fsencode(job) + b"/\xff.pt", os.O_CREAT))
    assert kept(job, "*.pt") == (["model.pt"], {"?.pt": "its name is not printable"})


def test_links_pipes_and_paths_out_of_the_directory_are_left_out(job: Path) -> None:
    (job / "link").symlink_to(job.parent / "secret")
    (job / "out").symlink_to(job.parent)
    (job / "logs" / "inner").symlink_to(job.parent)
    os.mkfifo(job / "pipe")
    files, left_out = kept(
        job, "link", "out/secret", "out", "logs/inner/secret", "pipe", "../secret", str(job.parent / "secret")
    )
    assert files == []
    assert left_out["link"] == left_out["out"] == "a link"
    assert left_out["pipe"] == "not a plain file"
    assert left_out["../secret"] == left_out[str(job.parent / "secret")] == "outside the job's directory"
    assert {"out/secret", "logs/inner/secret"} <= left_out.keys()
    with pytest.raises(FileNotFoundError):
        read_output(job.parent / "outputs", "../secret", 0, 100)


def test_files_beyond_the_limit_of_all_outputs_are_left_out(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outputs, "MAX_BYTES", 10)
    files, left_out = kept(job, "logs/a.csv", "model.pt", "logs/deep/b.csv")
    assert files == ["logs/a.csv", "logs/deep/b.csv"]
    assert left_out == {"model.pt": "the outputs of a job have at most 10 bytes"}


def test_a_file_that_grows_beyond_the_limit_while_it_is_copied_leaves_nothing(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_outputs, "MAX_BYTES", 12)
    read = os.read

    def grow(file: int, size: int) -> bytes:
        with open(job / "model.pt", "ab") as target:
            target.write(b"x" * 10)
        return read(file, size)

    monkeypatch.setattr(kept_outputs.os, "read", grow)
    assert kept(job, "model.pt") == ([], {"model.pt": "the outputs of a job have at most 12 bytes"})


def test_a_job_that_removed_its_directory_has_a_list_of_no_outputs(job: Path) -> None:
    shutil.rmtree(job)
    assert kept(job, "*.pt") == ([], {"*.pt": "nothing matches it; the job's directory has no files"})


def test_a_slash_behind_a_pattern_changes_nothing(job: Path) -> None:
    assert kept(job, "logs/**/") == kept(job, "logs/**") == kept(job, "logs/")
