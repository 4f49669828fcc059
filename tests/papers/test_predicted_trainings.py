"""Horus' test bed with predictions from a table, on a small made-up one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.errors import InputError
from fairlead_papers.horus.predicted import PredictedTrainings, compared, main, read_predictions
from fairlead_papers.horus.runs import HORUS, OBP, Run
from fairlead_papers.horus.scale import SCALES

BUSY = {"small@1/bf16": 15.0, "light@2/bf16": 35.0, "middle@4/fp32": 55.0, "large@8/bf16": 80.0, "full@16/fp32": 97.0}
MEMORY_GB = {"small@1/bf16": 4.0, "light@2/bf16": 10.0, "middle@4/fp32": 20.0, "large@8/bf16": 60.0, "full@16/fp32": 90.0}


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def prediction(name: str, memory: float, more: float = 1.0, **fields: Any) -> dict[str, Any]:
    busy, mb = BUSY[name], MEMORY_GB[name] * 1024
    made = {"device": "NVIDIA H200", "allocated_mb": mb * memory / 2, "reserved_mb": mb * memory / 2, "memory_mb": mb * memory}
    made |= {"utilization": busy * more, "utilization_low": busy * more, "utilization_high": busy * more}
    return {"name": name, **made, "steps_per_s": 9.0, "steps_per_s_low": 8.0, "steps_per_s_high": 11.0, **fields}


@pytest.fixture
def world(tmp_path: Path) -> dict[str, Path]:
    device = {"about": {"device": "NVIDIA H200", "sharing": "time-slicing"}}
    alone = [
        {"name": name, "family": name[0], "steps_per_s": 10.0, "spread": 0.01, "utilization": busy, "memory_utilization": 5.0}
        | {"device_memory_mb": MEMORY_GB[name] * 1024}
        for name, busy in BUSY.items()
    ]
    pair = {"name": "one", "pair": ["small@1/bf16", "full@16/fp32"], "steps_per_s": [8.0, 9.0]}
    return {
        "alone": lines(tmp_path / "alone.jsonl", device, *alone),
        "pairs": lines(tmp_path / "pairs.jsonl", device, {**pair, "undisturbed_steps_per_s": [10.0, 10.0]}),
        "today": lines(tmp_path / "today.jsonl", *(prediction(n, 2.5, source="graph") for n in BUSY if "fp32" in n)),
        "new": lines(tmp_path / "new.jsonl", device, *(prediction(n, 1.1) for n in BUSY)),
        "low": lines(tmp_path / "low.jsonl", *(prediction(n, 0.3, source="graph") for n in BUSY)),
    }


def inputs(world: dict[str, Path], which: str, only: str = "*") -> PredictedTrainings:
    return PredictedTrainings(alone=world["alone"], pairs=world["pairs"], predictions=world[which], only=only, every=True)


def test_the_truth_is_measured_where_it_was_and_fitted_elsewhere(world):
    given = inputs(world, "new")
    table = given.table
    rate = lambda one, other: table.paired[table.row(one, 1), table.row(other, 1), 0]  # noqa: E731
    assert rate("small@1/bf16", "full@16/fp32") == pytest.approx(8.0)
    assert 0 < rate("large@8/bf16", "full@16/fp32") < 10.0
    assert [one.kind for one in inputs(world, "new", "*bf16*").trainings] == [name for name in BUSY if "bf16" in name]
    assert {one.kind for one in replace(given, every=False).trainings} == {"small@1/bf16", "full@16/fp32"}
    assert given.fingerprint != inputs(world, "today").fingerprint


def test_predictions_decide_what_shares_and_the_truth_what_runs_out_of_memory(world):
    run = Run(HORUS.policy, "3xh200:3", "W-Large", 24, 0)
    new, today = run.run(inputs(world, "new")), run.run(inputs(world, "today"))
    assert new["out_of_memory"] == today["out_of_memory"] == 0
    assert new["shared_s"] > today["shared_s"] > 0, "today's predicts no job of bf16"
    low = Run(OBP.policy, "3xh200:3", "W-Large", 24, 0).run(inputs(world, "low"))
    assert low["out_of_memory"] > 0, "two jobs of 90 GB on 141 GB"


def test_the_figures_of_the_issue_are_printed(world, capsys):
    found = compared(SCALES["tiny"], inputs(world, "new"))
    assert found.keys() == {"W-Large", "W-Small"}
    assert found["W-Large"]["out of memory"] == 0
    files = [f"--{name}={world[name]}" for name in ("alone", "pairs")]
    main([*files, "--predictions", f"new={world['new']}", "--scale", "tiny", "--every"])
    said = capsys.readouterr().out
    assert "new: 5 of 5 trainings are predicted" in said
    for what in ("FIFO/Horus", "OBP/Horus", "PAB/Horus", "out of memory", "shared GPU hours, SLO"):
        assert f"new\tW-Small\t{what}\t" in said


def test_without_measurements_the_trainings_are_those_of_the_paper(world, capsys):
    main(["--predictions", "graph", "--predictions", f"new={world['new']}", "--scale", "tiny"])
    said = capsys.readouterr().out
    assert "graph\tW-Large\tFIFO/Horus\t" in said
    assert "new: 0 of " in said
    assert "new\tW-Large\tshared GPU hours\t0\n" in said, "nothing is predicted of these trainings"
    with pytest.raises(SystemExit):
        main(["--predictions", "graph", "--alone", str(world["alone"]), "--pairs", str(world["pairs"])])


def test_bad_lines_of_predictions_are_named(tmp_path):
    with pytest.raises(InputError, match="JSON object"):
        list(read_predictions(_broken(tmp_path)))
    with pytest.raises(InputError, match=r"b\.jsonl:1.*utilization"):
        list(read_predictions(lines(tmp_path / "b.jsonl", prediction("small@1/bf16", 1.0, utilization=400.0))))


def _broken(folder: Path) -> Path:
    (folder / "a.jsonl").write_text("{\n")
    return folder / "a.jsonl"
