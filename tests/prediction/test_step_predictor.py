"""The model of a step's speed: its weights, its errors on families left out, and files that are not one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from fairlead.core.errors import InputError
from fairlead.prediction.step_predictor import SHIPPED, SpeedModel, combined, load_speed_model, shipped_speed_model, weighed
from fairlead_papers.prediction import fit_steps


def test_weights_of_exact_sums_are_found():
    chosen = np.random.default_rng(3)
    true = {"a": 2.0, "b": 0.5}, {"c": 7.0, "d": 1.5}, {"a": 1.0, "b": 0.25}
    device, host = ([dict(zip(of, chosen.lognormal(size=2).tolist())) for _ in range(40)] for of in true[:2])
    device_s, host_s, held_s = (
        np.array([weighed(one, of) for one in terms]) for terms, of in zip((device, host, device), true)
    )
    slower = chosen.lognormal(sigma=0.2, size=40)
    host_s *= slower
    step_s = combined(device_s, host_s)
    used, held = 100 * device_s / step_s, 100 * held_s / step_s
    rows = [str(at) for at in range(40)], np.array(["one"] * 40), device, host, step_s, device_s, host_s, used, held
    found = fit_steps.fit(fit_steps.MeasuredSteps(*rows, slower, 10.0), ridge=1e-9)
    for weights, of in zip((found.device, found.host, found.multiprocessors), true):
        assert weights == pytest.approx(of, rel=1e-3)


def test_a_slower_host_makes_a_step_slower_and_the_gpu_idle():
    model = SpeedModel({"matmul_low": 1.0}, {"launches": 1.0}, {"matmul_low": 0.5}, 10.0)
    fast = model.estimate({"matmul_low": 0.01}, {"launches": 0.001}, 100)
    slow = model.estimate({"matmul_low": 0.01}, {"launches": 0.001}, 100, host_launch_us=9000.0)
    assert fast.steps_per_s[1] == pytest.approx(100, rel=1e-3)
    assert slow.steps_per_s[1] == pytest.approx(33.3, rel=1e-2)
    assert fast.utilization[1] == pytest.approx(100, rel=1e-3)
    assert slow.utilization[1] == pytest.approx(33.3, rel=1e-2)
    assert slow.steps_per_s[0] < slow.steps_per_s[1] < slow.steps_per_s[2]
    assert slow.utilization[0] < slow.utilization[1] < slow.utilization[2] <= 100
    assert slow.multiprocessors == pytest.approx(slow.utilization[1] / 2)


def test_the_shipped_model_is_the_fit_to_what_was_measured():
    data = fit_steps.measured_steps()
    assert len(data.names) >= 60
    assert len(set(data.families)) >= 20
    guess = fit_steps.left_out(data)
    errors = fit_steps.errors_of(data, guess)
    assert errors["steps_per_s_median_error"] <= 0.12
    assert errors["utilization_rmsle"] <= 0.20
    again, shipped = fit_steps.with_errors(fit_steps.fit(data), data, guess), shipped_speed_model()
    assert again.device == pytest.approx(shipped.device, rel=1e-3)
    assert again.host == pytest.approx(shipped.host, rel=1e-3)
    assert again.step_error == pytest.approx(shipped.step_error, abs=1e-3)


@pytest.mark.parametrize(
    "damage", [{"host_launch_us": "soon"}, {"device": {"matmul_low": -1}}, {"step_error": [1]}, {"format": "2"}]
)
def test_a_damaged_model_is_refused(tmp_path: Path, damage: dict[str, object]):
    path = tmp_path / "model.json"
    path.write_bytes(orjson.dumps({**orjson.loads(SHIPPED.read_bytes()), **damage}))
    with pytest.raises(InputError, match=r"model\.json"):
        load_speed_model(path)
