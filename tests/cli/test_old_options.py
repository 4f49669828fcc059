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
        assert refused.stderr.startswith("fairlead: error: No such option: --estimation")


def test_an_old_option_is_not_proposed():
    refused = fairlead("serve", "--terM", "3")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("fairlead: error: No such option: --terM; did you mean --cluster or --tls-cert?")
    unlike = fairlead("trace", "check", "--zzz")
    assert unlike.stderr == "fairlead: error: No such option: --zzz; 'fairlead trace check --help' lists the options\n"


def test_help_has_the_new_option_alone():
    text = fairlead("simulate", "--help").stdout
    assert "--estimator" in text
    assert "--estimation" not in text


def test_a_part_is_described_under_its_former_name():
    for former, present in (("turns", "gavel-rounds"), ("watched", "monitored")):
        described = fairlead("policies", former)
        assert described.returncode == 0
        assert described.stdout == fairlead("policies", present).stdout
