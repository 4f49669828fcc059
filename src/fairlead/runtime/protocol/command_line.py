"""The command of a task: a list of words is executed as it is, a string runs in a shell. Also the name of what it runs."""

from __future__ import annotations

import re
import shlex

MAX_WORDS, MAX_WORD = 4096, 32_768

SHELL = "bash"
"""Runs strings; a node without it uses `sh`."""

_SIMPLE = re.compile(r"[\w@%+:,./=\- \t]+\Z", re.ASCII)  # nothing that a shell would treat differently from a split into words
_BUILTINS = (
    ". : [ alias bg break builtin caller case cd command continue coproc declare dirs disown enable eval exec exit export fg "
    "for function getopts hash help history if jobs let local logout mapfile popd pushd read readarray readonly return select "
    "set shift shopt source suspend time times trap type typeset ulimit umask unalias unset until wait while"
)

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
    if len(run) > MAX_WORD:  # splitting takes time quadratic in a word's length
        raise ValueError(f"a line of at most {MAX_WORD} characters, or a list of words")
    words = run.split()
    if words and _SIMPLE.match(run) and "=" not in words[0] and words[0] not in _BUILTINS.split():
        return words, False
    _split(run)
    return _checked([SHELL, "-c", run] if words else []), True


def _checked(words: list[str]) -> list[str]:
    if not words or not words[0]:
        raise ValueError("a program to run")
    if len(words) > MAX_WORDS:
        raise ValueError(f"at most {MAX_WORDS} words")
    return words


def _split(line: str) -> list[str]:
    """The words of a line, roughly; a quotation without end is an error unless it may be text of a here-document."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        if "<<" in line:
            return line.split()
        raise ValueError(f"a command line ({error})") from None


def program_name(run: list[str] | str) -> str:
    """Return what a command runs: the first word that looks like a script; else an interpreter's first word that is not an
    option, such as a module's name; else the program, also with -c."""
    words = run if isinstance(run, list) else _split(run) or run.split()
    script = next((at for at, word in enumerate(words) if _SCRIPT.match(word)), 0)
    if not script and _INTERPRETER.match(words[0]):
        script = next((at for at, word in enumerate(words) if at and not word.startswith("-")), 0)
    return words[0] if "-c" in words[:script] else words[script]


def command_text(words: list[str], *, shell: bool = False) -> str:
    """Return a command as a user wrote it: a list of words quoted as for a shell, or the line that a shell runs."""
    return words[2] if shell and len(words) == 3 else shlex.join(words)
