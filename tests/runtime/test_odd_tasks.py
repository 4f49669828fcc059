"""Tasks that nobody means."""

from __future__ import annotations

import shlex
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InputError
from fairlead.runtime.protocol.command_line import command_words, program_name
from fairlead.runtime.protocol.task_file import parse_task


def test_a_line_too_long_to_be_split_at_once_is_told_and_words_are_not():
    with pytest.raises(InputError, match=r"field 'run' is .*a line of at most 32768 characters, or a list of words"):
        parse_task({"run": "x" * 200_000}, "task")
    assert parse_task({"run": ["echo", *["x" * 30_000] * 10]}, "task").run[0] == "echo"


@pytest.mark.parametrize(
    ("run", "words", "shell"),
    [
        ("python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"], False),
        ("a && b", ["bash", "-c", "a && b"], True),
        ("A=1 train", ["bash", "-c", "A=1 train"], True),
        ("exit 3", ["bash", "-c", "exit 3"], True),
        ("echo 'it is'", ["bash", "-c", "echo 'it is'"], True),
        ("one\ntwo", ["bash", "-c", "one\ntwo"], True),
        ("cat <<E\nit's\nE", ["bash", "-c", "cat <<E\nit's\nE"], True),
        (["a && b"], ["a && b"], False),
    ],
)
def test_a_string_is_for_a_shell_and_a_list_is_executed_as_it_is(run, words, shell):
    assert command_words(run) == (words, shell)


@pytest.mark.parametrize(
    "line", ["a;b 'c d'e", 'x "a\\"b\\n" y;', r"a\ b; c\\d", "'' ;x", "a#b; c\nd.py", "# all\nb;", "a\r\n'b\n c';", "é \u3000;"]
)
def test_the_program_of_a_line_is_found_as_a_shell_would_split_it(line):
    words = shlex.split(line, comments=True)
    assert program_name(line) == next((word for word in words if word.endswith(".py")), words[0])


def test_no_line_is_split_with_quadratic_time(monkeypatch):
    monkeypatch.setattr(shlex, "split", None)  # appends to a word character by character
    assert parse_task({"run": "x;" + "a" * 32_000}, "task").job("a", "ann").kind.startswith("x;aaa")


@given(
    st.dictionaries(
        st.sampled_from(["a", "bb", "ccc"]), st.lists(st.text("aé'\x01$ {}\"", max_size=9), min_size=1, max_size=3)
    ),
    st.sampled_from(["echo {a} {bb} '{a}'", "x {ccc}{ccc} && y", "train"]),
)
def test_no_member_of_a_grid_is_larger_than_what_is_checked(grid, run):
    if "'{a}'" in run and any(shlex.quote(value) != value for value in grid.get("a", ())):
        with pytest.raises(InputError, match=r"\{a\} outside quotation marks"):
            parse_task({"run": run, "grid": grid, "name": "t"}, "task")
        return
    task = parse_task({"run": run, "grid": grid, "name": "t"}, "task")
    for member in task.members("0"):
        size = len(task.job("t", "ann", member=member).command.encode())
        assert size <= len(task._command().encode()) + task._growth() + 1000, "1,000 bytes for its place"


@pytest.mark.parametrize(
    ("run", "values"),
    [
        ("echo '{a}'", ["x", "it's"]),
        ('echo "{a}"', ["x y"]),
        ("echo \\{a}", ["x y"]),
        ("echo b; # it is {a}", ["x\ny'"]),
        ("echo {a} {a}", ["x" * 20_000]),
        (["echo", "{a}{a}"], ["x" * 20_000]),
        (["{a}", "x"], ["", "python"]),
        ('cat <<< "{a}"', ["it's"]),
        ('echo $((1<<2)) "{a}"', ["x y"]),
        ("cat <<E\n'{a}'\nE", ["it's"]),
        ("cat <<E\n{a} $(echo {a})\nE\necho {a}", ["$(id)"]),
    ],
)
def test_a_grid_whose_values_cannot_be_filled_in_is_an_input_error(run, values):
    with pytest.raises(InputError, match=r"\{a\} outside quotation marks|at most 32768 characters|a program to run for all"):
        parse_task({"run": run, "grid": {"a": values}}, "task")


def test_plain_values_of_a_grid_may_be_in_a_here_document():
    task = parse_task({"run": "cat <<E\nrate: {a}\nE", "grid": {"a": [0.1, "adam"]}}, "task")
    assert "rate: adam\n" in task.job("t", "ann", member=task.members("0")[1]).command.replace("\\n", "\n")


def test_values_of_a_grid_are_quoted_once_for_all_their_places(monkeypatch):
    quoted = Counter[str]()
    quote = shlex.quote
    monkeypatch.setattr(shlex, "quote", lambda text: quoted.update([text]) or quote(text))
    parse_task({"run": f"echo '{'{a}' * 1000}'", "grid": {"a": ["1"] * 50}}, "task")
    assert quoted["1"] < 1000


@pytest.mark.parametrize(
    "run", ["echo {a}", "echo 'b' {a} \"c\"; d", "# b\necho {a}", ["echo", "'{a}'"], "x $# ${b##*/} c#{a}"]
)
def test_values_of_a_grid_may_have_quotation_marks_and_spaces(run):
    task = parse_task({"run": run, "grid": {"a": ["it's", 'x "y']}}, "task")
    assert all(task.job("t", "ann", member=member) for member in task.members("0"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"array": ",".join(["0-9999"] * 1000)}, "at most 10,000 jobs"),
        ({"grid": {f"p{n}": ["1"] for n in range(1000)}}, "at most 64 parameters"),
    ],
)
def test_a_short_text_does_not_stand_for_endless_work(fields, words):
    with pytest.raises(InputError, match=words):
        parse_task({"run": "x", **fields}, "task")


@pytest.mark.parametrize("run", ["", "  ", [], [""], "echo 'without end"])
def test_no_command_is_refused(run):
    with pytest.raises(InputError):
        parse_task({"run": run}, "task")


def test_durations_are_another_name_of_seconds():
    task = parse_task({"run": "x", "time_limit": "2h", "deadline": 60, "min_run": "1m", "grace_s": "10s"}, "task")
    assert (task.time_limit_s, task.deadline_s, task.min_run_s, task.grace_s) == (7200, 60, 60, 10)
    for wrong in ({"time_limit": "soon"}, {"time_limit": "2h", "time_limit_s": 3}, {"time_limit": 0}, {"time_limit": True}):
        with pytest.raises(InputError):
            parse_task({"run": "x", **wrong}, "task")
