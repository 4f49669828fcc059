"""Options of earlier versions are still read, and `--help` has only those of today."""

from __future__ import annotations

from command import fairlead

SMALL = ("simulate", "--policy", "las", "--jobs", "3", "--cluster", "4xv100:4", "--json")


def test_an_old_option_means_the_new_one():
    assert fairlead(*SMALL, "--estimation", "online").returncode == 0
    assert fairlead(*SMALL, "--estimation", "on-line").stderr.startswith("fairlead: error: unknown estimator 'on-line'")


def test_an_old_option_is_unknown_where_the_new_one_is():
    for words in (("queue",), ("trace", "check", "x.csv")):
        refused = fairlead(*words, "--estimation", "online")
        assert refused.returncode == 2
        assert "No such option: --estimation" in refused.stderr


def test_help_has_the_new_option_alone():
    text = fairlead("simulate", "--help").stdout
    assert "--estimator" in text
    assert "--estimation" not in text


def test_a_part_is_described_under_its_former_name():
    for former, present in (("turns", "gavel-rounds"), ("watched", "monitored")):
        described = fairlead("policies", former)
        assert described.returncode == 0
        assert described.stdout == fairlead("policies", present).stdout
