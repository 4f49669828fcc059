"""`fairlead presets`, and `--preset` where a scheduler is chosen, from the outside."""

from __future__ import annotations

import json

from command import one_after_the_other

from fairlead.config.presets import presets
from fairlead.engine.journal import JsonlJournal


def test_presets_are_listed_shown_run_and_changed_part_by_part(tmp_path):
    few = ("--jobs", "12", "--cluster", "8xv100:4", "--json")
    cases = [
        ("presets",),
        ("presets", "--json"),
        ("presets", "show", "tiresias"),
        ("presets", "show", "tiresius"),
        ("simulate", "--preset", "tiresias", "--placement", "spread", "--round", "60", *few, "--events", "events.jsonl"),
        ("simulate", "--preset", "las-accept-1.2x", "--policy", "srtf", *few),
        ("compare", "--preset", "tiresias", "--preset", "gavel", *few, "--processes", "1"),
        ("simulate", "--preset", "las", "--config", "mine.yaml", *few),
        ("serve", "--cluster", "2xv100:2", "--preset", "lass"),
        ("up", "--preset", "las", "--placement", "sprea"),
    ]
    folders = [tmp_path / str(number) for number in range(len(cases))]
    for folder in folders:
        folder.mkdir()
    table, listed, shown, unknown, run, other, compared, both, served, up = one_after_the_other(list(zip(folders, cases)))
    assert all(name in table.stdout for name in presets())
    assert [one["name"] for one in json.loads(listed.stdout)["presets"]] == list(presets())
    assert shown.stdout == presets()["tiresias"].text
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("fairlead: error: unknown preset 'tiresius'; near: 'tiresias'")
    assert json.loads(run.stdout)["finished"] == 12
    scheduler = next(iter(JsonlJournal(folders[4] / "events.jsonl"))).scheduler
    assert (scheduler["placement"], scheduler["rounds"], scheduler["policy"]["name"]) == ("spread", 60.0, "tiresias")
    assert json.loads(other.stdout)["scheduler"] == "srtf + accept-up-to(factor=1.2)"
    assert [arm["scheduler"] for arm in json.loads(compared.stdout)["results"]] == ["tiresias", "gavel"]
    assert (
        both.stderr
        == "fairlead: error: command line: field 'preset' is 'las': expected either --config FILE or --preset NAME\n"
    )
    assert "unknown preset 'lass'; near: 'las'" in served.stderr
    assert "unknown placement 'sprea'; near: 'spread'" in up.stderr
    assert not list(folders[9].iterdir())  # told before anything was made
