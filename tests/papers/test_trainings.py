"""The trainings to measure, and the program that measures them."""

from __future__ import annotations

import math

import pytest

from fairlead.core.errors import InputError
from fairlead.profiling.results import read_results

torch = pytest.importorskip("torch")

from fairlead.prediction.training_step import TrainingStep  # noqa: E402
from fairlead_papers.prediction import measure_steps, trainings  # noqa: E402
from fairlead_papers.prediction.measure_steps import StepTiming, measure_all, measure_step, run_apart  # noqa: E402
from fairlead_papers.prediction.trainings import entries, entry  # noqa: E402

SMALLEST = "mlp-1024@784:512/fp32"
TINY = "mlp-64@16:4/fp32"
QUICK = StepTiming(warm_steps=1, warm_s=0.0, window_s=0.01, windows=2)


def test_the_list_has_many_families_and_modes():
    listed = entries()
    assert len({one.name for one in listed}) == len(listed) >= 64
    families = {one.family for one in listed}
    assert len(families) >= 22
    assert {one.family for one in listed[: len(families)]} == families, "families alternate"
    modes = {one.name: one.fields["mode"].split("+") for one in listed}
    single = {one.family for one in listed if modes[one.name] == ["fp32"]}
    assert families - single == {"mixtral"}, "a grouped product could not be traced in single precision when the list was made"
    assert {change for mode in modes.values() for change in mode} <= {*trainings.MODES, *trainings.CHANGES}
    assert {"checkpointing", "accumulate2", "adafactor", "clip", "fp16", "sgd"} <= {
        word for mode in modes.values() for word in mode
    }


@pytest.mark.parametrize(
    "name",
    [
        "mlp-16@8:4/fp32",
        "lstm-16x1@8:2/bf16",
        "gru-16x2@8:2/fp32",
        "switch-64x1x2@8:2/bf16",
        "mamba-16x1@6:2/bf16",
        "gcn-8x2@20:1/bf16",
        "gat-8x1@20:1/fp32+adamw",
        "dlrm-1x8@3:4/bf16+clip",
        "unet-2@32:1/bf16+accumulate2",
    ],
)
def test_own_models_make_a_step_and_every_parameter_has_a_gradient(name):
    training = entry(name).make()
    running = TrainingStep(training, "cpu")
    running.step()
    running.step()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in training.model.parameters())


def test_the_scan_of_state_spaces_carries_tokens_forward_only():
    from fairlead_papers.prediction.training_models import StateSpaceBlock

    torch.manual_seed(0)
    block, states = StateSpaceBlock(4).eval(), torch.randn(2, 7, 4)
    short = block(states[:, :5])
    assert torch.allclose(block(states)[:, :5], short, atol=1e-5), "later tokens do not change earlier ones"
    changed = states.clone()
    changed[:, 0, 0] += 1.0
    assert (block(changed)[:, 6] != block(states)[:, 6]).any(), "the state carries the first token to the last"


@pytest.mark.parametrize("name", ["bert-base@128:32/bf17", "bert-bass@128:32/bf16", "bert-base@128:32/bf16+clop"])
def test_an_unknown_name_is_an_error(name: str):
    with pytest.raises(InputError, match="did you mean"):
        entry(name)


def test_a_row_has_speed_parts_and_host_time():
    row = measure_step(TINY, "cpu", QUICK)
    assert row["steps_per_s"] > 0
    assert len(row["windows"]) == 2
    assert row["issue_s"] > 0
    assert row["cpu_s_per_step"] >= 0
    assert row["gradients_mb"] == row["parameters_mb"] == row["optimizer_mb"] == pytest.approx(4 * row["parameters"] / 2**20)


def test_measurements_are_kept_and_not_repeated(tmp_path, monkeypatch):
    asked: list[str] = []

    def answer(task, *given, seconds=0.0):
        if task is measure_steps.about_host:
            return {"device": "test"}
        asked.append(given[0])
        return "OutOfMemoryError: too small" if "gcn" in given[0] else {"steps_per_s": 1.0}

    monkeypatch.setattr(measure_steps, "run_apart", answer)
    only = f"{SMALLEST},gcn-64*"
    measure_all(tmp_path / "steps.jsonl", only, math.inf, "cpu", QUICK)
    measure_all(tmp_path / "steps.jsonl", only, math.inf, "cpu", QUICK)
    assert len(asked) == 2
    about, rows = read_results(tmp_path / "steps.jsonl")
    assert about == {"device": "test"}
    assert {row["family"]: row.get("problem") for row in rows} == {"mlp": None, "gcn": "OutOfMemoryError: too small"}


def test_a_process_of_its_own_answers_or_says_why_not():
    assert run_apart(math.sqrt, 4.0, seconds=120.0) == 2.0
    assert run_apart(math.sqrt, -1.0, seconds=120.0).startswith("ValueError")


def test_a_known_model_has_other_batches_and_modes():
    made = entry("bert-base@256:8/bf16+clip")
    assert (made.family, made.fields["batch_size"], made.fields["mode"]) == ("bert", 8, "bf16+clip")
