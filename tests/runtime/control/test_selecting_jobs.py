"""Selecting jobs by name, number, pattern, array and state, on a cluster of more jobs than one answer has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import served
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.cli.selectors import change_jobs, select_jobs
from fairlead.core.errors import NOT_FOUND, REFUSED, NotFound
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest

MANY = 1500


@pytest.fixture(scope="module")
def planes() -> Iterator[tuple[ControlPlaneClient, ControlPlaneClient]]:
    """An admin and ann: 1,500 jobs of an array, a plain job of each, and jobs of one name."""
    with served("v100:4") as cluster:
        admin, ann = ControlPlaneClient(cluster.url, cluster.token), ControlPlaneClient(cluster.url, cluster.user)
        ann.submit([{"name": "sweep", "run": "true", "array": MANY}])
        admin.submit([{"name": "train-a", "run": "true"}])
        ann.submit([{"name": "train-b", "run": "true"}])
        for _ in range(2):
            ann.submit([{"name": "again", "run": "true"}])
            ann.cancel("again")
        yield admin, ann


def names(jobs: list[dict[str, object]]) -> list[object]:
    return [job["name"] for job in jobs]


def test_an_array_larger_than_an_answer_is_selected_whole(planes):
    admin, ann = planes
    assert names(select_jobs(ann, ["sweep"])) == [f"sweep-{n}" for n in range(MANY)]
    assert len(select_jobs(ann, ["sweep-*"])) == MANY
    assert len(select_jobs(admin, [], user="ann", array="sweep")) == MANY
    assert len(select_jobs(admin, all_users=True)) == MANY + 4
    assert len(select_jobs(ann, [f"sweep-{n}" for n in range(0, MANY, 3)])) == MANY // 3, "more words than one request has"


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("sweep[0-2]", ["sweep-0", "sweep-1", "sweep-2"]),
        ("sweep[1,1498-2000]", ["sweep-1", "sweep-1498", "sweep-1499"]),
        ("sweep-149?", [f"sweep-149{n}" for n in range(10)]),
        ("1", ["sweep-1"]),
        ("train-*", ["train-b"]),
        ("again", ["again"]),
        ("ag*", ["again"]),
    ],
)
def test_a_word_is_a_name_a_number_a_pattern_or_members_of_an_array(planes, word, found):
    _, ann = planes
    assert names(select_jobs(ann, [word])) == found


def test_a_name_means_its_most_recent_job_and_words_are_joined(planes):
    _, ann = planes
    [again] = select_jobs(ann, ["again"])
    assert ann.job("again")["earlier"] == [again["number"] - 1]
    assert names(select_jobs(ann, ["train-b", "sweep[3]", "sweep-3"])) == ["sweep-3", "train-b"]
    assert names(select_jobs(ann, states=["cancelled"])) == ["again", "again"]


def test_an_admin_matches_the_jobs_of_others_by_pattern_only_if_told_to(planes):
    admin, _ = planes
    assert names(select_jobs(admin, ["train-*"])) == ["train-a"]
    assert names(select_jobs(admin, ["train-*"], all_users=True)) == ["train-a", "train-b"]
    assert names(select_jobs(admin, ["train-b"])) == ["train-b"]
    assert names(select_jobs(admin, ["train-*"], user="ann")) == ["train-b"]
    with pytest.raises(RefusedRequest, match="no job of yours matches 'sweep-\\*', but jobs of ann do: pass --user NAME"):
        select_jobs(admin, ["sweep-*"])


@pytest.mark.parametrize(
    ("words", "limits", "why"),
    [
        (["sweep", "zzz"], {}, "there is no job 'zzz'"),
        (["train-c"], {}, "there is no job 'train-c'; did you mean 'train-b'"),
        (["nothing-*"], {}, "there is no job 'nothing-\\*'"),
        (["train-a"], {}, "there is no job 'train-a'"),
        (["sweep[2000-2001]"], {}, "there is no job"),
        (["sweep"], {"states": ["failed"]}, "no job matches: sweep; failed"),
        ([], {"array": "none"}, "no job matches: array none"),
    ],
)
def test_no_match_is_an_error_that_ends_with_3(planes, words, limits, why):
    _, ann = planes
    with pytest.raises((RefusedRequest, NotFound), match=why) as told:
        select_jobs(ann, words, **limits)
    assert told.value.exit_code == NOT_FOUND


def test_the_jobs_of_another_user_are_refused(planes):
    _, ann = planes
    with pytest.raises(RefusedRequest, match="need an admin token") as told:
        select_jobs(ann, user="root")
    assert told.value.exit_code == REFUSED


def test_a_live_array_keeps_its_name_and_one_name_means_one_job(planes):
    _, ann = planes
    for task in ({"name": "sweep", "run": "true"}, {"name": "sweep", "run": "true", "array": "5000-5001"}):
        with pytest.raises(RefusedRequest, match="the name 'sweep' is taken"):
            ann.submit([task])
    with pytest.raises(RefusedRequest, match="sweep is an array of 1,500 jobs; name one, such as sweep-0"):
        ann.job("sweep")


def test_a_job_that_is_refused_keeps_no_other_from_being_changed(monkeypatch):
    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.token)
        plane.submit([{"name": "sweep", "run": "true", "array": 3}])
        plane.cancel("sweep-0")
        monkeypatch.setenv("FAIRLEAD_URL", cluster.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", cluster.token)
        for command in ("hold", "requeue --hold", "update --priority 2"):
            words = command.split()
            done = CliRunner().invoke(app, [words[0], "sweep", *words[1:]], standalone_mode=False)
            changed = [job["name"] for job in plane.find_jobs(["sweep"]) if job["held_by"] or job["priority"]]
            if command.startswith("requeue"):  # an ended job runs again
                assert (done.exception, changed) == (None, ["sweep-0", "sweep-1", "sweep-2"])
                plane.cancel("sweep-0")
                continue
            assert isinstance(done.exception, RefusedRequest)
            assert str(done.exception).startswith("1 of 3 jobs refused; sweep-0: the job has already ended")
            assert (done.exception.exit_code, changed) == (4, ["sweep-1", "sweep-2"])


def test_jobs_that_end_while_others_are_cancelled_are_left_as_they_are():
    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.token)
        plane.submit([{"name": f"j{number}", "run": "true"} for number in range(3)])
        jobs = plane.find_jobs()
        plane.cancel("j1")
        changed, refusal = change_jobs(plane, "cancel", jobs)
    assert [answer["number"] for _, answer in changed] == [0, 2]
    assert str(refusal) == "1 of 3 jobs refused; j1: the job has already ended"


def test_jobs_that_are_changed_are_printed_although_others_are_held_by_an_operator(monkeypatch):
    with served("v100:4") as cluster:
        admin, user = (ControlPlaneClient(cluster.url, token) for token in (cluster.token, cluster.user))
        user.submit([{"name": name, "run": "true"} for name in ("a", "b")])
        admin.hold("0")
        user.hold("b")
        monkeypatch.setenv("FAIRLEAD_URL", cluster.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", cluster.user)
        done = CliRunner().invoke(app, ["release", "a", "b"], standalone_mode=False)
        assert done.stdout == "b (number 1) is released\n"
        assert str(done.exception) == "1 of 2 jobs refused; a: the job is held by root; ask root to release it"
        weighty = CliRunner().invoke(app, ["update", "a", "b", "--weight", "900"], standalone_mode=False).exception
        assert str(weighty).startswith("2 of 2 jobs refused; a: jobs of user 'ann'")
