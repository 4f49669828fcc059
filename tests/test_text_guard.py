"""The words of Fairlead: no private terms in documentation, help and messages, and no sentence that is too long.

python tests/test_text_guard.py docs/guides/gangs.md     # one page or several: prints each hit with its line
python tests/test_text_guard.py                          # everything
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from fairlead.cli.main import app
from fairlead.config.registry import GROUPS, Registry, presets

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fairlead"
MAX_WORDS = 40
"""Words of a sentence in documentation. 25 is the aim."""

PERSONS = r"(?:users?|operators?|admins?|administrators?|engineers?|readers?|researchers?|authors?|contributors?|teams?)"

BANNED = {
    r"whoever|nobody|everybody|somebody|no[- ]one": "a job is a thing: 'the job that …', 'no job', 'all jobs'",
    r"(?<!\w)whom?(?! it is for\b)": "a job is a thing: 'the job that …'; persons are 'users who', 'operators who'",
    r"people": "users",
    r"accelerators?": "GPU, GPUs (accelerator is a key of files and of the API)",
    r"company": "co-location",
    r"beside": "co-located with; next to",
    r"gets? on(?: with)?": "interference; are co-located without a large slowdown",
    r"bears?": "tolerates",
    r"doors?": "feasibility check",
    r"anew": "again",
    r"(?:goes|went|going) on|go on": "resumes, continues",
    r"(?:is|are|was|were|be) away": "is unreachable",
    r"told|telling|hearing": "prints, reports, says in a message",
    r"looks? ahead|looking ahead|foresee\w*|foresaw|foreseen|outlook": "simulate ahead, forecast",
    r"(?:each|every|one|next|last|these|those|several|two|more) looks?": "simulation",
    r"youngest": "most recent",
    r"pretend\w*|played": "simulated (GPUs), emulated (agents)",
    r"estimation": "throughput estimator",
    r"(?:takes?|taking|took|in|by|of|the|with) turns": "rounds (Gavel's Algorithm 1); alternate",
    r"guests?": "backfill",
    r"polic(?:y|ies) of shares": "allocation policy",
    r"vessels?|sifting|in_line|in_time": "water-filling model, column generation, greedy queue, min-makespan LP",
    r"seats?|seating": "rank assignment",
    r"holdings|whereabouts|natures|held back": "device map, placement tracker, job dynamics, quota",
    r"overtaken|keepable|chronicle|unhurried": "revalidate, serializable, event log, policy timeout",
    r"lessons?": "observations",
    r"lifelines?|errands?|desks?": "fencing deadline, launch spec, work directory",
    r"crews?|endless": "process pool, is_stream",
    r"(?:a|each|every|one|first|last|next|another|this) try": "attempt",
    r"entit(?:y|ies)": "account (team)",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:Told|Seen|Said|Meant|Counted|Shown|Named|Asked|Kept|Given) (?:is|are|was|were)": "begin with a subject",
}
"""Words of WRITING.md's tables, and what to write. Code between back ticks is not checked."""

_BANNED = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), use) for words, use in BANNED.items()]
_PERSON_BEFORE = re.compile(rf"\b{PERSONS}(?: \w+)?,? $", re.IGNORECASE)

IMMUTABLE = "docs/adr/"
"""Records of decisions may have longer sentences; the words hold there too."""


class Hit(NamedTuple):
    """A word or a sentence to rewrite."""

    line: int
    text: str
    use: str


def banned_words(text: str, line: int = 1) -> Iterator[Hit]:
    """Yield the banned words of a text."""
    for pattern, use in _BANNED:
        for found in pattern.finditer(text):
            if found[0].lower().startswith("who") and _PERSON_BEFORE.search(text[: found.start()]):
                continue
            if found[0].lower().startswith("accelerator") and "similar device" in text:  # the sentence that explains the key
                continue
            yield Hit(line + text.count("\n", 0, found.start()), found[0].replace("\n", " "), use)


def paragraphs(page: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the text of a Markdown page without code: the line where it begins, and whether it is prose."""
    begun, lines, fence, comment = 0, list[str](), "", False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if fence or mark:
            fence = "" if mark and fence and mark[1].startswith(fence) else fence or (mark[1] if mark else "")
            line = ""
        comment = "<!--" in line or comment
        starts = re.match(r"\s*([-*+]|\d+\.)\s|\s*(#|\||:::|>|:\w)", line)
        if lines and (not line.strip() or starts or comment):
            yield begun, "\n".join(lines), not re.match(r"\s*(#|\||:::)", lines[0])
            lines = []
        if line.strip() and not comment:
            begun = begun if lines else number
            lines.append(_plain(line))
        comment = comment and "-->" not in line


def _plain(line: str) -> str:
    line = re.sub(r"`+[^`]*`+", "`x`", line)  # code is one word
    line = re.sub(r"\$[^$]+\$", "x", line)
    line = re.sub(r"\]\([^)]*\)|\{[^}]*\}|<[^>]+>", " ", line)
    return line


def long_sentences(text: str, line: int) -> Iterator[Hit]:
    """Yield the sentences that are too long."""
    at = 0
    for sentence in re.split(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])", text):
        place = text.index(sentence, at)
        at = place + len(sentence)
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > MAX_WORDS:
            yield Hit(line + text.count("\n", 0, place), f"{len(words)} words: {' '.join(words[:8])} …", "split the sentence")


def hits_of_page(path: Path) -> list[Hit]:
    """Return what to rewrite in a Markdown page."""
    hits: list[Hit] = []
    for line, text, prose in paragraphs(path.read_text(encoding="utf-8")):
        hits += banned_words(text, line)
        if prose and IMMUTABLE not in path.as_posix():
            hits += long_sentences(text, line)
    return sorted(hits)


RAISERS = {
    "InputError",
    "require",
    "check_number",
    "option_error",
    "UnknownName",
    "NotInstalled",
    "note",
    "Reason",
    "unsuitable",
}
RAISERS |= {"not_placed", "not_admitted", "no_decision", "deadline_infeasible", "dependency_failed", "HTTPException", "refuse"}
RAISERS |= {"info", "warning", "error", "exception", "echo", "print"}
"""Functions whose texts users read, besides what is raised."""


def hits_of_module(path: Path) -> list[Hit]:
    """Return what to rewrite in the messages of a module: errors, reasons, notes and log events."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    messages: dict[ast.expr, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            messages |= dict.fromkeys(_literals(node.exc))
        elif isinstance(node, ast.Call) and (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) in RAISERS:
            messages |= dict.fromkeys(each for part in (*node.args, *node.keywords) for each in _literals(part))
        elif path.name in ("reasons.py", "explain.py") and isinstance(node, ast.Dict):
            messages |= dict.fromkeys(each for part in node.values for each in _literals(part))
    return sorted(hit for text in messages for hit in banned_words(_unquoted(text.value), text.lineno))  # type: ignore[attr-defined]


def _literals(node: ast.AST) -> Iterator[Any]:
    yield from (each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _unquoted(text: str) -> str:
    """Without keys and names: what stands in quotes, and single words."""
    return "" if re.fullmatch(r"[\w.:-]*", text) else re.sub(r"'[^']*'|`[^`]*`|\w+_\w+|--\w+", "x", text)


@cache
def help_texts() -> dict[str, list[str]]:
    """Return the texts of `--help` by command: of the command, and of its arguments and options."""
    root = typer.main.get_command(app)
    context = root.make_context("fairlead", [], resilient_parsing=True)
    found: dict[str, list[str]] = {}

    def walk(path: str, command: Any) -> None:
        parameters = [getattr(each, "help", None) or "" for each in command.params if not getattr(each, "hidden", False)]
        found[path] = [inspect.cleandoc(command.help or ""), command.get_short_help_str(200), *parameters]
        for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
            walk(f"{path} {name}", command.get_command(context, name))

    walk("fairlead", root)
    return found


def hits_of_help(command: str) -> list[Hit]:
    """Return what to rewrite in the help of a command."""
    texts = [re.sub(r"^  .*$", "", text, flags=re.MULTILINE) for text in help_texts()[command]]  # examples are code
    words = [hit for text in texts for hit in banned_words(re.sub(r"`[^`]*`|'[^']*'|--\w+", "x", text))]
    return words + [hit for text in texts for part in text.split("\n\n") for hit in long_sentences(part, 1)]


def pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found += (ROOT / "papers").rglob("*.md")
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.is_file() and "generated" not in path.parts)


def modules() -> list[str]:
    folders = (SOURCE, ROOT / "papers" / "src")
    return sorted(path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.py"))


def lines(place: str, hits: list[Hit]) -> list[str]:
    return [f"{place}:{hit.line}: {hit.text!r}: {hit.use}" for hit in hits]


@pytest.mark.parametrize("page", pages())
def test_a_page_has_plain_words_and_short_sentences(page: str):
    assert not lines(page, hits_of_page(ROOT / page))


@pytest.mark.parametrize("command", list(help_texts()))
def test_help_has_plain_words_and_short_sentences(command: str):
    assert not lines(command, hits_of_help(command))


def test_descriptions_of_parts_and_presets_have_plain_words():
    about = {f"{part.what} {part.name}": part.summary for kind in GROUPS for part in Registry.installed().of(kind)}
    about |= {f"preset {preset.name}": preset.about for preset in presets().values()}
    assert not [line for name, text in about.items() for line in lines(name, [*banned_words(text), *long_sentences(text, 1)])]


def test_messages_have_plain_words():
    assert not [line for module in modules() for line in lines(module, hits_of_module(ROOT / module))]


def test_the_guard_sees_what_it_should(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# The job who waits\n\nUsers who wait, and `who` in code, are fine.\n\n```\nnobody\n```\n\n"
        f"Short. {'Word ' * 41}end.\n\n- nobody runs\n\n| a company |\n"
    )
    assert [(hit.line, hit.text.split(":")[0]) for hit in hits_of_page(page)] == [
        (1, "who"),
        (9, "42 words"),
        (11, "nobody"),
        (13, "company"),
    ]
    module = tmp_path / "module.py"
    module.write_text("raise ValueError(f'{x} is told anew')\nkey = 'nobody'\nnote('the most beautiful company of all')\n")
    assert [(hit.line, hit.text) for hit in hits_of_module(module)] == [(1, "anew"), (1, "told"), (3, "company")]


if __name__ == "__main__":
    given = [Path(name).resolve().relative_to(ROOT).as_posix() for name in sys.argv[1:]]
    report = [line for page in given or pages() if page.endswith(".md") for line in lines(page, hits_of_page(ROOT / page))]
    report += [line for name in given or modules() if name.endswith(".py") for line in lines(name, hits_of_module(ROOT / name))]
    report += [] if given else [line for name in help_texts() for line in lines(name, hits_of_help(name))]
    print("\n".join(report) or "no hits")
    sys.exit(bool(report))
