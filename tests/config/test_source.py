"""YAML that would take a reader's time, memory or stack is refused with a line."""

from __future__ import annotations

import pytest

from fairlead.config.yaml_source import parse_yaml
from fairlead.core.errors import InputError


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 20_000, "- " * 50_000, "a: " + "[[]," * 10_000, "? " * 20_000])
def test_lists_in_lists_without_end_are_told(text: str) -> None:
    with pytest.raises(InputError, match=r"x.yaml:1: expected lists and mappings at most 50 deep"):
        parse_yaml(text, "x.yaml")


@pytest.mark.parametrize("digits", ["9" * 5000, "0x" + "f" * 5000])
@pytest.mark.parametrize("text", ["a: 1\nb: {}", "a: 1\n? {}\n: 3", "a: 1\nb: [1, {}]"])
def test_a_number_of_thousands_of_digits_is_told(text: str, digits: str) -> None:
    with pytest.raises(InputError, match=r"x.yaml:2: field 'number' is .*at most 1,000 digits"):
        parse_yaml(text.format(digits), "x.yaml")


def test_what_people_write_is_read() -> None:
    text = "- " * 40 + "1"
    value = parse_yaml(f"a: {10**300}\nb:\n  {text}", "x.yaml")
    assert value.mapping()["a"].whole("a number", 0) == 10**300


def test_powers_of_ten_are_numbers_as_in_yaml_since_1_2() -> None:
    values = list(parse_yaml("[1e3, 2.5E-3, +.5e1]", "x.yaml").items())
    assert [value.number("a number") for value in values] == [1000.0, 0.0025, 5.0]
    for text in ("1e999", "-1e3", "e3", "1e3s"):
        with pytest.raises(InputError, match=f"is '{text}': expected a number"):
            parse_yaml(f"a: {text}", "x.yaml").mapping()["a"].number("a number")


@pytest.mark.parametrize("text", ["09", "1:30", "1_000", "'4'"])
def test_a_number_that_yaml_1_1_reads_as_another_is_refused_with_its_line(text: str) -> None:
    value = parse_yaml(f"a: {text}", "x.yaml").mapping()["a"]
    for read in (value.whole, value.number):
        with pytest.raises(InputError, match=r"x.yaml:1: field 'a' is '.*': expected a number, without .* leading zeros"):
            read("a number", 0)


def test_texts_of_digits_stay_as_they_are_written() -> None:
    value = parse_yaml("['010', 08, 1:30, 2:00:00, 1_0, 12, 0, 0x1f, 007.5, -1.5]", "x.yaml")
    assert value.data == ["010", "08", "1:30", "2:00:00", "1_0", 12, 0, 31, 7.5, -1.5]


@pytest.mark.parametrize("text", ["a: 1\nb: {}", "a: 1\n{}: b", "a: 1\nb: [1, -{}]"])
def test_a_number_that_may_be_octal_is_refused_with_all_that_it_may_mean(text: str) -> None:
    with pytest.raises(
        InputError, match=r"x.yaml:2: field 'number' is '-?010': expected -?10, -?8 if it is octal, or '-?010' in"
    ):
        parse_yaml(text.format("010"), "x.yaml")
