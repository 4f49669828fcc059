"""Jobs that are submitted with a prediction share GPUs before they were measured, within limits. Measurements replace it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_agents import Scene

from fairlead.api.connection import ClusterConnection
from fairlead.cli.job_info import prediction_facts
from fairlead.config.schedulers import Part, SchedulerConfig, parse_part
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError
from fairlead.core.events import JobSubmitted
from fairlead.core.job import Job, Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.feasibility import infeasible_reason
from fairlead.engine.state_codec import load, save
from fairlead.estimators.predicted import Monitored, Predicted
from fairlead.experiments.live_inputs import with_estimated_interference
from fairlead.prediction.step_prediction import Z80, StepPrediction, job_prediction
from fairlead.runtime.control.views import prediction_record
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import Progress
from fairlead.runtime.protocol.task_file import TaskSpec, parse_task
from fairlead.testing import Harness
from fairlead.testing.invariants import check_state
from fairlead.workloads.formats import read_trace_file, write_trace
from fairlead.workloads.trace import Trace
from scenes import table_of

LIGHT: dict[str, Any] = {
    "device": "v100",
    "allocated_mb": 1024.0,
    "reserved_mb": 1536.0,
    "memory_mb": 2048.0,
    "utilization": 30.0,
    "utilization_low": 25.0,
    "utilization_high": 35.0,
    "steps_per_s": 2.0,
    "steps_per_s_low": 1.6,
    "steps_per_s_high": 2.4,
}


def text(**changes: Any) -> str:
    return StepPrediction.from_data({**LIGHT, **changes}).job_text("v100")


def scene_of(*jobs: dict[str, Any], machines: str = "v100:1") -> Scene:
    scene = Scene(machines, policy="horus", estimator="monitored")
    scene.join()
    for number, about in enumerate(jobs):
        scene.job(f"j{number}", **{"steps": 1e6, "kind": "train.py", "memory_gb": 2.0, **about})
    scene.at(0.0)
    return scene


def running(scene: Scene) -> list[int]:
    return [n for n in scene.loop.state.job_of if scene.phase(n) is Phase.RUNNING]


def test_two_jobs_with_predictions_share_at_once_within_their_limits():
    scene = scene_of({"prediction": text(), "max_slowdown": 1.5}, {"prediction": text(utilization=32.0), "max_slowdown": 1.5})
    assert running(scene) == [0, 1]
    check_state(scene.loop.state, residents=2)
    assert replay_events(scene.journal).digest() == scene.loop.state.digest()
    again = load(save(scene.loop.state))
    assert (again.digest(), again.predictions) == (scene.loop.state.digest(), {"train.py": text(utilization=32.0)})


def test_a_prediction_is_of_its_own_job_and_not_of_others_of_its_kind():
    scene = scene_of({"prediction": text()}, {}, {"prediction": text()})
    assert running(scene) == [0, 2]
    rates = scene.loop.state.snapshot(0.0)
    usage = Monitored().rates(rates).usage
    assert usage is not None
    assert usage.memory_gb[Monitored().rates(rates).row, 0].tolist() == [2.0, np.inf, 2.0]


def test_memory_alone_is_no_prediction_of_the_utilization():
    known = {name: LIGHT[name] for name in ("device", "allocated_mb", "reserved_mb", "memory_mb")}
    only_memory = StepPrediction.from_data(known).job_text("v100")
    usage = Monitored().rates(scene_of({"prediction": only_memory}).loop.state.snapshot(0.0)).usage
    assert usage is not None
    assert (usage.utilization.item(), usage.memory_gb.item()) == (1.0, 2.0)


def test_an_uncertain_utilization_keeps_a_limit_by_running_alone():
    sure, unsure = (
        text(utilization=60.0, utilization_low=58.0, utilization_high=62.0),
        text(utilization=60.0, utilization_high=98.0),
    )
    limit = 1.6
    for prediction, shared in ((sure, True), (unsure, False)):
        both = {"prediction": prediction, "max_slowdown": limit}
        assert (len(running(scene_of(both, both))) == 2) == shared
    assert len(running(scene_of({"prediction": unsure}, {"prediction": unsure}))) == 2, "without a limit there is none to keep"


@pytest.mark.parametrize("policy", ["max-min-fairness-perf", "fifo-perf"])
@pytest.mark.parametrize(("high", "shared"), [(61.0, True), (98.0, False)])
def test_policies_that_solve_for_pairs_keep_limits_with_the_interval_too(policy: str, high: float, shared: bool):
    table = table_of(("v100",), {("a", 1): [2.0]})
    config = SchedulerConfig(
        parse_part(f"{policy}:space_sharing=true"), estimator=Part("predicted", {"usage": {}}), round_s=60.0
    )
    harness = Harness(config, table=replace(table, paired=np.full_like(table.paired, 1.5)), residents=2)
    harness.cluster(Cluster((Node("n", "v100", 1),), (AcceleratorType("v100", 16.0),)))
    prediction = text(utilization=60.0, utilization_high=high)
    jobs = [Job(f"j{n}", 0.0, 36000.0, "a", 1, max_slowdown=1.6, prediction=prediction) for n in range(2)]
    harness.submit(*jobs)
    most = 0
    for _ in range(6):
        harness.round()
        most = max(most, len(harness.state.running))
    assert (most == 2) == shared


def test_the_interval_widens_the_uncertainty_of_the_slowdown():
    table = table_of(("v100",), {("a", 1): [2.0]})
    row = table.row("a", 1)
    scene = Scene("v100:1")
    view, found = scene.loop.state.snapshot(0.0), []
    for high in (30.0, 90.0):
        seen = view.with_changes(predictions={"a": text(utilization_low=0.0, utilization_high=high)})
        rates = Predicted(table).rates(seen)
        assert rates.usage is not None
        assert rates.usage.slowdown_margin is not None
        found.append((rates.paired_uncertainty[row, row, 0], rates.usage.slowdown_margin[row, row, 0]))
    (narrow, none), (wide, margin) = found
    assert none == 0
    assert margin > 0.2
    assert wide == pytest.approx(np.hypot(narrow, margin / Z80))


def test_what_was_measured_replaces_the_prediction():
    wrong = text(memory_mb=9 * 1024.0, utilization=95.0, utilization_high=99.0)
    scene = scene_of({"prediction": wrong, "memory_gb": 9.0, "max_slowdown": 1.5})
    for second in range(1, 40):
        scene.backend.heartbeat(0, Heartbeat((0.2,), (3.0,)))
        scene.backend.report(0, [Progress(0, 1, 2 * second, 0, 2.5)])
        scene.at(float(second))
    view = scene.loop.state.snapshot(scene.second)
    rates = Monitored().rates(view)
    assert rates.usage is not None
    assert (rates.usage.utilization.item(), rates.usage.memory_gb.item()) == pytest.approx((0.2, 3.0))
    assert rates.alone.item() == 2.5
    assert rates.usage.slowdown_margin is not None
    assert not rates.usage.slowdown_margin.any(), "it was measured"
    about = prediction_record(scene.loop.state, 0)
    assert (about["memory_gb"], "note" in about) == ({"predicted": 9.0, "measured": 3.0}, False)
    assert [about[name]["measured"] for name in ("utilization", "steps_per_s")] == pytest.approx([20.0, 2.5])
    for name in ("next", "further"):  # 9 GB and 9 GB would not fit on a GPU of 16 GB
        scene.job(name, steps=1e6, kind="train.py", memory_gb=9.0, prediction=wrong, max_slowdown=1.5)
    scene.at(60.0)
    assert running(scene) == [0, 1]


def test_jobs_slower_than_predicted_are_separated_in_the_next_round():
    both = {"prediction": text(), "max_slowdown": 1.5}
    scene = scene_of(both, {**both, "kind": "other.py"})
    assert running(scene) == [0, 1]
    scene.backend.report(0, [Progress(number, 1, 20, 0, 1.0) for number in (0, 1)])  # 2 steps/s were predicted
    scene.at(1.0)
    scene.at(1.0 + 2 * scene.loop.stages.round_s)
    assert running(scene) == [0]
    check_state(scene.loop.state, residents=2)


def test_forecasts_use_the_predictions_of_job_types():
    scene = scene_of({"prediction": text()}, {"prediction": text(), "kind": "other.py"})
    state = scene.loop.state
    table = table_of(("v100",), {("train.py", 1): [2.0], ("other.py", 1): [2.0]})
    table = replace(table, paired=np.zeros_like(table.paired))
    config = SchedulerConfig.from_data({"policy": "horus", "estimator": "monitored"})
    found = with_estimated_interference(table, state, config).paired
    assert 0 < found[table.row("train.py", 1), table.row("other.py", 1), 0] < 2.0


def test_a_job_that_uses_more_memory_than_predicted_is_noted():
    scene = scene_of({"prediction": text()})
    assert prediction_record(scene.loop.state, 0)["memory_gb"] == {"predicted": 2.0, "measured": None}
    for second in range(1, 40):
        scene.backend.heartbeat(0, Heartbeat((0.2,), (3.0,)))
        scene.backend.report(0, [Progress(0, 1, 2 * second, 0, 2.5)])
        scene.at(float(second))
    about = prediction_record(scene.loop.state, 0)
    assert about["note"] == "it uses 3.0 GB of GPU memory, more than the 2.0 GB that were predicted"
    shown = dict(prediction_facts({"prediction": about}))
    assert shown["GPU memory"] == "at most 2.0 GB, measured 3 GB"
    assert (shown["utilization"], shown["speed"]) == (
        "30 % (25 to 35), measured 20 %",
        "2 steps/s (1.6 to 2.4), measured 2.5 steps/s",
    )
    usage = Monitored().rates(scene.loop.state.snapshot(scene.second)).usage
    assert usage is not None
    assert usage.memory_gb.item() == 3.0


def test_a_predicted_rate_is_known_as_well_as_its_interval_says():
    scene = scene_of({"prediction": text(steps_per_s_low=2.0, steps_per_s_high=2.0)}, {"prediction": text(workers=2)})
    rates = Monitored().rates(scene.loop.state.snapshot(0.0))
    assert rates.uncertainty is not None
    assert (rates.alone[rates.row[0]].item(), rates.uncertainty[rates.row[0]].item()) == (2.0, 0.0)
    assert rates.uncertainty[rates.row[1]].item() > 0.5, "it was predicted for two workers"
    assert StepPrediction.from_data({**LIGHT, "steps_per_s": 0.0, "steps_per_s_low": 0.0}).rate_uncertainty == np.inf


def test_a_journal_has_the_prediction_only_where_there_is_one(tmp_path):
    plain, predicted = Job("a", kind="train.py"), Job("b", kind="train.py", prediction=text())
    assert b"prediction" not in encode(JobSubmitted(0.0, 0, plain))
    assert decode(encode(JobSubmitted(0.0, 1, predicted))).job == predicted
    assert decode(b'{"event":"job_submitted","time":5.0,"number":0,"job":{"name":"a","kind":"train.py"}}').job.prediction == ""
    write_trace(Trace.of([plain, predicted]), tmp_path / "jobs.csv")
    assert read_trace_file(tmp_path / "jobs.csv").jobs == (plain, predicted)
    with pytest.raises(InputError, match="JSON"):
        job_prediction("{")


H200 = {**LIGHT, "device": "NVIDIA H200"}


def job_of(**fields: Any) -> Job:
    return parse_task({"run": "python train.py", "prediction": H200, **fields}, "task.yaml").job("a", "ann")


def test_the_announced_memory_is_requested_unless_the_user_asks_for_another():
    assert (job_of().memory_gb, job_of(memory_gb=5).memory_gb) == (2.0, 5.0)
    assert job_prediction(job_of().prediction) == replace(StepPrediction.from_data(H200), device="h200")


def test_trainings_with_other_predictions_are_other_job_types():
    first, other = job_of().kind, job_of(prediction={**H200, "utilization": 31.0}).kind
    assert first.startswith("train.py@")
    assert first == job_of(name="b").kind != other
    assert job_of(kind="resnet").kind == "resnet"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"utilization": float("nan")}, "utilization"),
        ({"memory_mb": -1}, "memory_mb"),
        ({"memory_mb": 1e14}, "memory_mb"),
        ({"steps_per_s_high": 1e300}, "steps_per_s_high"),
        ({"flops": 10**400}, "flops"),
        ({"device": ""}, "device"),
        ({"device": ["h200"]}, "device"),
        ({"utilization_high": 200}, "utilization_high"),
        ({"surprise": 1}, "one of"),
    ],
)
def test_impossible_predictions_are_refused_by_name(changed: dict[str, Any], field: str):
    with pytest.raises(InputError, match=f"prediction.*{field}"):
        parse_task({"run": "true", "prediction": {**H200, **changed}}, "task.yaml")


def test_a_prediction_that_fits_on_no_gpu_is_refused_with_what_to_try():
    cluster = Cluster((Node("n", "h200", 4),), (AcceleratorType("h200", 141.0),))
    large = job_of(prediction={**H200, "memory_mb": 200 * 1024})
    assert "needs 200 GB of GPU memory" in infeasible_reason(large, cluster).text
    assert "fairlead predict module ... --max-batch" in infeasible_reason(large, cluster).text
    assert "--max-batch" not in infeasible_reason(replace(large, prediction=""), cluster).text


def test_the_members_of_an_array_share_the_prediction():
    spec = TaskSpec.model_validate({"run": "true", "array": 3, "prediction": H200})
    jobs = [spec.job(member.job_name, "ann", (), member) for member in spec.members("1") if member]
    assert {job.prediction for job in jobs} == {job_of().prediction}


def test_python_submits_what_predict_returns():
    sent: list[Any] = []

    class Client:
        def submit(self, tasks: list[Any]) -> list[dict[str, Any]]:
            sent.extend(tasks)
            return [{"name": "a", "number": 0}]

    cluster = ClusterConnection(Client())  # type: ignore[arg-type]
    cluster.submit("python train.py", prediction=StepPrediction.from_data(H200))
    cluster.submit_array({"run": "true", "prediction": H200}, array=1)
    assert [parse_task(task, "sent").job("a", "ann").prediction for task in sent] == [job_of().prediction] * 2
