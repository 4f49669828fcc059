"""YAML with its line numbers: values that remember where they stand, so that an error can name file, line and field."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairlead.core.errors import InputError, near_or_all, require
from fairlead.files import is_stream

LARGEST = 1 << 20  # bytes; files written by hand are far smaller
DEEPEST = 50  # lists and mappings in each other
LONGEST = 1000  # digits; Python shows no whole number of some thousands

_BEGINS = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken, yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken)
_ENDS = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
_BY_TENS = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")  # 1e3, which is text in YAML 1.1 and a number since
_TAG = "tag:yaml.org,2002:"
_ODD = {f"{_TAG}{tag}" for tag in ("binary", "set", "omap", "pairs")}  # what no message can carry
_NONE: Mapping[str, str] = {}
_NUMBERS = {
    f"{_TAG}int": re.compile(r"[-+]?(0[0-7]*|[1-9][0-9]*|0x[0-9a-fA-F]+|0b[01]+)\Z"),
    f"{_TAG}float": re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?\Z|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"),
}
_OCTAL = re.compile(r"[-+]?0[0-7]+")  # in YAML 1.1; decimal since
_LIKE_NUMBERS = re.compile(r"[-+]?[0-9][0-9_:.]*")


class _Loader(yaml.SafeLoader):
    """Reads 1:30 and 1_000 as text, which YAML 1.1 reads as 90 and 1000."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Value:
    """A value of a YAML file: plain data, the field's name, and its line."""

    data: Any
    source: str
    field: str
    line: int | None
    lines: dict[tuple[str | int, ...], int]
    path: tuple[str | int, ...] = ()

    def error(self, expected: str) -> InputError:
        return InputError(self.source, expected, line=self.line, field=self.field or "file", value=self.data)

    @property
    def where(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def places(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """File and line of everything in it, each by its way from here; nothing where lines are not known."""
        deep = len(self.path)
        for path, line in self.lines.items():
            if path[:deep] == self.path:
                yield path[deep:], f"{self.source}:{line}"

    def mapping(self, known: Collection[str] | None = None, renamed: Mapping[str, str] = _NONE) -> dict[str, Value]:
        """Return its fields. A field that is not in `known` is an error; `renamed` maps old names to those of today."""
        if not isinstance(self.data, dict):
            raise self.error("a mapping of names to values")
        fields: dict[str, Value] = {}
        for name in self.data:
            value = self._child(name, str(name))
            current = renamed.get(value.field, value.field)
            if current in fields:
                raise InputError(
                    self.source,
                    f"only one of '{value.field}' and '{current}', its new name",
                    line=value.line,
                    field=value.field,
                )
            fields[current] = value
        for name, value in fields.items():
            if known is not None and name not in known:
                raise InputError(self.source, f"a known field ({near_or_all(name, known)})", line=value.line, field=name)
        return fields

    def items(self) -> Iterator[Value]:
        if not isinstance(self.data, list):
            raise self.error("a list")
        for index in range(len(self.data)):
            yield self._child(index, f"{self.field}[{index}]")

    def number(self, expected: str, least: float = 0.0, *, most: float = sys.float_info.max, above: bool = False) -> float:
        found = self.data
        if isinstance(found, str) and _BY_TENS.fullmatch(found):
            found = float(found)
        good = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not good or not (found > least if above else found >= least) or not found <= most:
            raise self._not_a_number(expected)
        return float(found)

    def whole(self, expected: str, least: int) -> int:
        if not isinstance(self.data, int) or isinstance(self.data, bool) or self.data < least:
            raise self._not_a_number(expected)
        return self.data

    def _not_a_number(self, expected: str) -> InputError:
        like_one = isinstance(self.data, str) and _LIKE_NUMBERS.fullmatch(self.data)
        return self.error(f"{expected}, without quotes, leading zeros, '_' or ':'" if like_one else expected)

    def text(self, expected: str) -> str:
        if not isinstance(self.data, str) or not self.data.strip():
            raise self.error(expected)
        return self.data.strip()

    def yes_or_no(self) -> bool:
        if not isinstance(self.data, bool):
            raise self.error("true or false")
        return self.data

    def _child(self, key: str | int, name: str) -> Value:
        path = (*self.path, key)
        return Value(self.data[key], self.source, name, self.lines.get(path, self.line), self.lines, path)


def read_yaml(path: Path | str) -> Value:
    """The value in a YAML file; raise InputError if it is not valid YAML."""
    path = Path(path)
    try:
        if is_stream(path) or path.is_dir():
            raise InputError(path, "a regular file")
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
        require(len(raw) <= LARGEST, path, f"a file of at most {LARGEST >> 20} MiB")
        text = raw.decode("utf-8")
    except OSError as error:
        raise InputError(path, f"a readable file ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InputError(path, "UTF-8 text") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Value:
    """Return the value of a YAML text; `source` names it in errors."""
    lines: dict[tuple[str | int, ...], int] = {}
    deep = 0
    try:
        for token in yaml.scan(text, Loader=_Loader):
            if isinstance(token, yaml.AliasToken):  # aliases can unfold to any size
                raise InputError(source, "YAML without aliases", line=token.start_mark.line + 1)
            deep += isinstance(token, _BEGINS) - isinstance(token, _ENDS)
            if deep > DEEPEST:
                raise InputError(source, f"lists and mappings at most {DEEPEST} deep", line=token.start_mark.line + 1)
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _note_lines(node, (), lines, source)
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(source, f"YAML ({error.problem})", line=line) from error
    except (yaml.YAMLError, ValueError, LookupError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(source, f"YAML ({' '.join(str(error).split())[:120]})") from error
    if data is None:
        raise InputError(source, "some content; the file is empty")
    return Value(data, source, "", 1, lines)


def in_a_line(data: Any) -> str:
    """Plain data as one line of YAML; whole numbers without a point."""
    text = yaml.safe_dump(_whole(data), default_flow_style=True, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return text.removesuffix("...\n").strip()


def _whole(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _whole(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_whole(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() and abs(data) < 1e15 else data


def _note_lines(node: Any, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int], source: str) -> None:
    lines[path] = node.start_mark.line + 1
    _check_plain(node, source)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            _check_plain(key, source)
            name = str(getattr(key, "value", key))
            if name in seen:
                raise InputError(source, "each field only once", line=key.start_mark.line + 1, field=name)
            seen.add(name)
            _note_lines(value, (*path, name), lines, source)
            lines[(*path, name)] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*path, index), lines, source)
    elif any("\ud800" <= letter <= "\udfff" for letter in node.value):  # half a character, which no file can keep
        raise InputError(source, "text that UTF-8 can encode", line=node.start_mark.line + 1, value=repr(node.value))


def _check_plain(node: Any, source: str) -> None:
    if node.tag in _ODD:
        raise InputError(source, f"YAML without !!{node.tag.removeprefix(_TAG)}", line=node.start_mark.line + 1)
    if node.tag == f"{_TAG}int" and len(node.value) > LONGEST:
        line = node.start_mark.line + 1
        raise InputError(source, f"numbers of at most {LONGEST:,} digits", line=line, field="number", value=node.value)
    if node.tag == f"{_TAG}int" and _OCTAL.fullmatch(text := node.value):
        expected = f"{int(text)}, {int(text, 8)} if it is octal, or {text!r} in quotes if it is text"
        raise InputError(source, expected, line=node.start_mark.line + 1, field="number", value=text)
