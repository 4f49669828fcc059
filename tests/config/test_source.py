"""YAML that would take a reader's time, memory or stack is refused with a line."""

from __future__ import annotations

import pytest

from fairlead.config.source import parse_yaml
from fairlead.core.errors import InputError


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 20_000, "- " * 50_000, "a: " + "[[]," * 10_000, "? " * 20_000])
def test_lists_in_lists_without_end_are_told(text: str) -> None:
    with pytest.raises(InputError, match=r"x.yaml:1: expected lists and mappings at most 50 deep"):
        parse_yaml(text, "x.yaml")


@pytest.mark.parametrize("digits", ["9" * 5000, "0x" + "f" * 5000, "1" + ":1" * 5000])
@pytest.mark.parametrize("text", ["a: 1\nb: {}", "a: 1\n? {}\n: 3", "a: 1\nb: [1, {}]"])
def test_a_number_of_thousands_of_digits_is_told(text: str, digits: str) -> None:
    with pytest.raises(InputError, match=r"x.yaml:2: field 'number' is .*at most 1,000 digits"):
        parse_yaml(text.format(digits), "x.yaml")


def test_what_people_write_is_read() -> None:
    text = "- " * 40 + "1"
    value = parse_yaml(f"a: {10**300}\nb:\n  {text}", "x.yaml")
    assert value.mapping()["a"].whole("a number", 0) == 10**300
