"""The command of a task: a list of words is executed as it is, a string runs in a shell. Also the name of what it runs."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from string import ascii_letters, digits

MAX_WORDS, MAX_WORD = 4096, 32_768

SHELL = "bash"
"""Runs strings; a node without it uses `sh`."""

_SIMPLE = (ascii_letters + digits + "_@%+:,./=- \t").encode()  # a shell only splits at these characters, or keeps them
_BUILTINS = (
    ". : [ alias bg break builtin caller case cd command continue coproc declare dirs disown enable eval exec exit export fg "
    "for function getopts hash help history if jobs let local logout mapfile popd pushd read readarray readonly return select "
    "set shift shopt source suspend time times trap type typeset ulimit umask unalias unset until wait while"
)

# `shlex` takes time quadratic in a word's length; a pattern takes linear time.
_PIECE = re.compile(
    r"""(?P<between>[ \t\r\n]++|(?<![^\s;&|()<>])\#[^\n]*+)|(?P<plain>[^ \t\r\n\\'"\#]++|\#)|'(?P<single>[^']*+)'"""
    r"""|"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
# Each alternative excludes the others, and no group is possessive: Python before 3.11.5 matches possessive groups wrongly.
_LINE = re.compile(
    r"""(?:[^\\'"\#]++|(?<![^\s;&|()<>])\#[^\n]*+|(?<=[^\s;&|()<>])\#|'[^']*+'|"[^"\\]*+(?:\\.[^"\\]*+)*"|\\.)*\Z""", re.DOTALL
)
_HERE_DOCUMENT = re.compile(r"""(?<!<)<<(?!<)-?\s*[A-Za-z_'"\\]""")  # and not <<< WORD, nor 1<<2
_MAX_SEARCHED = 256  # words in which a script's name is looked for
_MAX_PATH = 4096  # characters of a script's name

_SCRIPT = re.compile(r"(?!-)[^=]*[^=/]\.(py|sh|bash|pl|rb|jl|R|lua|js)\Z")
_INTERPRETER = re.compile(r"(.*/)?((python|pypy)[\d.]*|(ba|da|k|z)?sh)\Z")


def command_words(run: list[str] | str) -> tuple[list[str], bool]:
    """Return the program with its arguments, and whether a shell runs them.

    A line without shell syntax is split into words and executed directly: the shell would do the same, and a missing program is
    noticed at once.

    Raises:
        ValueError: There is no program, or a quotation has no end.
    """
    if isinstance(run, list):
        return _checked(run), False
    if len(run) > MAX_WORD:
        raise ValueError(f"a line of at most {MAX_WORD} characters, or a list of words")
    words = run.split()
    simple = run.isascii() and not run.encode().translate(None, _SIMPLE)
    if words and simple and "=" not in words[0] and words[0] not in _BUILTINS.split():
        return words, False
    _check_quotes(run)
    return _checked([SHELL, "-c", run] if words else []), True


def _checked(words: list[str]) -> list[str]:
    if not words or not words[0]:
        raise ValueError("a program to run")
    if len(words) > MAX_WORDS:
        raise ValueError(f"at most {MAX_WORDS} words")
    return words


@lru_cache(64)  # the jobs of an array have the same line
def _check_quotes(line: str) -> None:
    """Refuse a quotation without end, unless it may be text of a here-document."""
    if not _HERE_DOCUMENT.search(line) and not _LINE.match(line):
        raise ValueError("a command line (No closing quotation)")


def quoted_names(line: str, placeholders: re.Pattern[str]) -> set[str]:
    """Return the names of the placeholders in a line's quotations and comments, and in a line with a here-document of all."""
    if _HERE_DOCUMENT.search(line):
        return {found[1] for found in placeholders.finditer(line)}
    quoted = [piece.span() for piece in _PIECE.finditer(line) if piece["plain"] is None and piece[0].strip()]
    starts = [start for start, _ in quoted]
    places = ((found, bisect_right(starts, found.start())) for found in placeholders.finditer(line))
    return {found[1] for found, after in places if after and found.start() < quoted[after - 1][1]}


def _words_of(line: str) -> Iterator[str]:
    """The words of a line, roughly; an unfinished quotation ends them."""
    word: list[str] = []
    for piece in _PIECE.finditer(line) if _LINE.match(line) else ():
        if piece["between"] is None:
            double = piece["double"]
            word.append(re.sub(r'\\(["\\])', r"\1", double) if double is not None else piece[piece.lastgroup or 0])
        elif word:
            yield "".join(word)
            word = []
    if word:
        yield "".join(word)


@lru_cache(64)
def _first_words(line: str) -> list[str]:
    return list(islice(_words_of(line), _MAX_SEARCHED)) or line.split()


def program_name(run: list[str] | str) -> str:
    """Return what a command runs: the first word that looks like a script; else an interpreter's first word that is not an
    option, such as a module's name; else the program, also with -c."""
    words = run if isinstance(run, list) else _first_words(run)
    short = ((at, word) for at, word in enumerate(words[:_MAX_SEARCHED]) if len(word) <= _MAX_PATH)
    script = next((at for at, word in short if _SCRIPT.match(word)), 0)
    if not script and _INTERPRETER.match(words[0]):
        script = next((at for at, word in enumerate(words) if at and not word.startswith("-")), 0)
    return words[0] if "-c" in words[:script] else words[script]


def command_text(words: list[str], *, shell: bool = False) -> str:
    """Return a command as a user wrote it: a list of words quoted as for a shell, or the line that a shell runs."""
    return words[2] if shell and len(words) == 3 else shlex.join(words)
