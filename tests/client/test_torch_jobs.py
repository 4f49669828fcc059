"""The examples that train with PyTorch: a preempted training ends with the very numbers of one that ran through."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_agent import EXAMPLES, Agent, lines

from fairlead.client.lease_page import Field, Stage

pytest.importorskip("torch", reason="the extra `torch` is not installed")

pytestmark = pytest.mark.long


def test_a_preempted_training_gives_the_losses_of_one_that_ran_through(agent: Agent, tmp_path: Path) -> None:
    command = (EXAMPLES / "train_torch.py", "--epochs", "3", "--points", "512")
    whole = agent.launch(
        *command, "--log", tmp_path / "whole", environment={"FAIRLEAD_CHECKPOINT_DIR": str(tmp_path / "other")}
    )
    assert whole.ends() == 0, whole.errors
    stages = []
    for steps in (11, 100):
        part = agent.launch(*command, "--log", tmp_path / "parts", bounds={Field.MAX_STEPS: steps})
        assert part.ends() == 0, part.errors
        stages.append((part.stage, part.page[Field.STEPS], part.page[Field.BATCH_SIZE]))
    assert stages == [(Stage.YIELDED, 11, 64), (Stage.FINISHED, 24, 64)]
    assert (tmp_path / "parts").read_text() == (tmp_path / "whole").read_text()
    assert part.printed == whole.printed


def test_a_gang_over_gloo_stops_after_one_step_and_goes_on(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = (EXAMPLES / "gang_gloo.py", "--points", "512", "--log", log)
    gang = agent.launch_gang(2, *command, "--epochs", "10000")
    gang[0].reaches(5)
    gang[0].revoke()
    assert [worker.ends() for worker in gang] == [0, 0], gang[0].errors + gang[1].errors
    last = gang[0].page[Field.STEPS]
    assert [(worker.stage, worker.page[Field.STEPS]) for worker in gang] == [(Stage.YIELDED, last)] * 2
    epochs = last // 16 + 2  # of 16 steps each
    again = agent.launch_gang(2, *command, "--epochs", str(epochs))
    assert [worker.ends() for worker in again] == [0, 0], again[0].errors + again[1].errors
    for rank in range(2):
        assert lines(tmp_path / f"log.{rank}") == list(range(epochs * 16))
