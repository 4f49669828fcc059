"""The value that predictions of a training are passed on as."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead.core.errors import InputError
from fairlead.prediction.step_prediction import StepPrediction, job_prediction

GOOD: dict[str, Any] = {
    "device": "NVIDIA H200",
    "allocated_mb": 900.0,
    "reserved_mb": 1000,
    "memory_mb": 1800.5,
    "parts_mb": {"parameters": 300.0, "activations": 600.0},
    "utilization": 80.0,
    "utilization_low": 70.0,
    "utilization_high": 90.0,
    "steps_per_s": 5.0,
    "steps_per_s_low": 4.0,
    "steps_per_s_high": 6.0,
    "kernels": 400,
    "workers": 2,
    "sharding": "ddp",
    "notes": ["torch.compile: the eager graph was traced"],
}


def test_a_prediction_survives_json():
    made = StepPrediction.from_data(GOOD)
    assert made.notes == ("torch.compile: the eager graph was traced",)
    assert StepPrediction.from_data(json.loads(json.dumps(made.to_data()))) == made


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"device": ""}, "device"),
        ({"allocated_mb": -1.0}, "allocated_mb"),
        ({"allocated_mb": float("nan")}, "allocated_mb"),
        ({"flops": float("inf")}, "flops"),
        ({"bytes": True}, "bytes"),
        ({"memory_mb": 950.0}, "memory_mb"),
        ({"reserved_mb": 800.0}, "memory_mb"),
        ({"utilization": 95.0}, "utilization"),
        ({"utilization_high": 101.0}, "utilization_high"),
        ({"multiprocessors": "many"}, "multiprocessors"),
        ({"steps_per_s_low": 5.5}, "steps_per_s"),
        ({"parts_mb": {"other": 1.0}}, "parts_mb"),
        ({"parts_mb": {"inputs": "1"}}, "parts_mb.inputs"),
        ({"workers": 0}, "workers"),
        ({"kernels": 1.5}, "kernels"),
        ({"sharding": "zero"}, "sharding"),
        ({"source": "guess"}, "source"),
        ({"notes": "one"}, "notes"),
        ({"notes": [1]}, "notes"),
        ({"more": 1}, "prediction"),
        ({"speeds": [1.0]}, "speeds"),
        ({"speeds": {"0": 1.0}}, "speeds"),
        ({"speeds": {"two": 1.0}}, "speeds"),
        ({"speeds": {"9" * 5000: 1.0}}, "speeds"),
        ({"speeds": {str(n): 1.0 for n in range(1, 40)}}, "speeds"),
        ({"speeds": {"2": 0.0}}, "speeds.2"),
        ({"speeds": {"2": float("inf")}}, "speeds.2"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(changed: dict[str, Any], field: str):
    with pytest.raises(InputError) as refused:
        StepPrediction.from_data({**GOOD, **changed}, "job.json")
    assert (refused.value.field, refused.value.source) == (field, "job.json")


def test_the_memory_is_required():
    with pytest.raises(InputError, match="reserved_mb"):
        StepPrediction.from_data({"device": "NVIDIA H200", "allocated_mb": 1.0})
    with pytest.raises(InputError, match="named fields"):
        StepPrediction.from_data([1])


def test_speeds_by_workers_travel_with_a_job_and_old_texts_stay_readable():
    made = StepPrediction.from_data({**GOOD, "speeds": {"1": 5.0, "2": 9.0, "8": 30.0}})
    assert made.speeds == {1: 5.0, 2: 9.0, 8: 30.0}
    assert StepPrediction.from_data(json.loads(json.dumps(made.to_data()))) == made
    carried = job_prediction(made.job_text("h200"))
    assert carried.speeds == made.speeds
    assert carried.speeds_at([1, 2, 4, 8]).tolist() == pytest.approx([5.0, 9.0, (9.0 * 30.0) ** 0.5, 30.0])
    assert carried.speeds_at([0, 9, 16]).tolist() == [0.0, 0.0, 0.0], "nothing is known of more workers"
    old = StepPrediction.from_data(GOOD)
    assert "speeds" not in old.job_text("h200"), "the text, and so the job type, is as it was"
    assert not old.speeds_at([1, 2]).any()
