"""How processes come to share an accelerator, with a service that is made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.core.errors import InputError
from fairlead.profiling.sharing_mode import SharingMode, in_sharing_mode


def test_time_slicing_needs_nothing_and_mps_says_what_it_lacks(monkeypatch):
    with in_sharing_mode(SharingMode.TIME_SLICING):
        pass
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="time-slicing"), in_sharing_mode(SharingMode.MPS):
        pass


def test_the_service_runs_for_as_long_as_it_is_needed_whatever_happens_meanwhile(tmp_path, monkeypatch):
    said = tmp_path / "said"
    (tmp_path / "nvidia-cuda-mps-control").write_text(f'#!/bin/sh\n[ "$1" = -d ] && echo start >> {said} || cat >> {said}\n')
    (tmp_path / "nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)

    def fall_over() -> None:
        with in_sharing_mode(SharingMode.MPS):
            assert Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
            assert said.read_text() == "start\n"
            raise KeyError

    with pytest.raises(KeyError):
        fall_over()
    assert said.read_text() == "start\nquit\n"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_a_service_that_does_not_start_is_told_in_words_and_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "mine")
    with pytest.raises(InputError, match="exit status 3"), in_sharing_mode(SharingMode.MPS):
        pytest.fail("it does not run")
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "mine"
