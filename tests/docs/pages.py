"""The pages of the documentation as tests see them: files, fenced blocks with the comments above them, and a runner."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from command_server import install
from foundry import environment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SLEEP_S = 3
"""A `sleep` at the start of a line is for readers who want to see more happen; in a test it is this short."""

BLOCK_WITHIN_S = 900.0
"""For a block of a page, on a busy machine."""

_FENCE = re.compile(r"^(?P<indent>[ >]*)(?P<fence>```+|~~~+)\s*(?P<language>[^\s`]*)[^\n`]*$")
_COMMENT = re.compile(r"^\s*<!--\s*(?P<key>[a-z ]+?)\s*(?::\s*(?P<value>.*?))?\s*-->\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line, and the comments above it, such as `file: jobs.csv`."""

    language: str
    text: str
    line: int
    marks: dict[str, str] = field(default_factory=dict)


def pages() -> list[Path]:
    """All pages: README, contributing, docs, and those of the examples."""
    own = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "examples").rglob("*.md")]
    found = (page for page in DOCS.rglob("*.md") if "generated" not in page.parts)
    return sorted(page for page in (*own, *found) if page.exists())


def name_of(page: Path) -> str:
    """What a test calls a page."""
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if (fence := _FENCE.match(line)) is not None:
            inside = []
            for _, each in lines:
                if each.strip(" >") == fence["fence"]:
                    break
                inside.append(each.removeprefix(fence["indent"]) if each.strip() else "")
            found.append(Block(fence["language"], "\n".join(inside) + "\n", number, marks))
            marks = {}
        elif (comment := _COMMENT.match(line)) is not None:
            marks = {**marks, comment["key"]: comment["value"] or ""}
        elif line.strip():
            marks = {}
    return found


def outside_blocks(text: str) -> str:
    """A page's text without its fenced blocks."""
    kept, fence = list[str](), ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if not fence and found is not None:
            fence = found["fence"]
        elif fence:
            fence = "" if line.strip(" >") == fence else fence
        else:
            kept.append(line)
    return "\n".join(kept)


def commands(text: str) -> list[str]:
    """The commands of a console block: the lines behind `$ `, with continuation lines and here-documents."""
    found: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\"):
            command += "\n" + next(lines).removeprefix("> ")
        if (document := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", command)) is not None:
            for each in lines:
                command += "\n" + each.removeprefix("> ")
                if each.removeprefix("> ").strip() == document[1]:
                    break
        found.append(command)
    return found


class PageFailed(AssertionError):
    """A block of a page did not end as it should."""


@dataclass
class PageRunner:
    """Runs the blocks of one page in a folder. Directory and exported variables last from one block to the next."""

    page: Path
    folder: Path
    address: Path
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)
    python: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        install(self.folder / "bin", self.address, own_ports=True)  # pages run at the same time
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "examples").symlink_to(ROOT / "examples")
        path = os.pathsep.join((str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        self.env = {**environment(), "PATH": path, "HOME": str(self.folder), "COLUMNS": "110"}
        self.env.pop("FAIRLEAD_URL", None)
        self.state, self.log = self.folder / "state", self.folder / "log"
        self.state.write_text(f"cd {self.work}\n")
        self.log.touch()

    def run(self, block: Block) -> None:
        if "file" in block.marks:
            target = self.work / block.marks["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            (self._start if "background" in block.marks else self._shell)(block)
        elif block.language == "python":
            self._python(block)

    def _script(self, block: Block) -> str:
        lines = (re.sub(r"^sleep \d+", f"sleep {SLEEP_S}", command) for command in commands(block.text))
        return f"source {self.state}\n" + "\n".join(lines) + "\n"

    def _shell(self, block: Block) -> None:
        expected = int(block.marks.get("exit", "0"))
        # What ends the block is kept, and so are directory and variables. Files, not pipes: jobs may outlive the shell.
        keep = f"set -eo pipefail\ntrap 'code=$?; {{ export -p; echo \"cd $PWD\"; }} > {self.state}; exit $code' EXIT\n"
        with open(self.log, "ab") as log, open(os.devnull, "rb") as nothing:
            process = subprocess.Popen(
                ["bash", "-c", keep + self._script(block)], stdin=nothing, stdout=log, stderr=log, env=self.env, cwd=self.work,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(BLOCK_WITHIN_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise self._failed(block, f"it did not end within {BLOCK_WITHIN_S:g} s") from None
        if code != expected:
            raise self._failed(block, f"exit code {code}, expected {expected}")

    def _start(self, block: Block) -> None:
        with open(self.log, "ab") as log, open(os.devnull, "rb") as nothing:
            script = ["bash", "-c", self._script(block)]
            process = subprocess.Popen(
                script, stdin=nothing, stdout=log, stderr=log, env=self.env, cwd=self.work, start_new_session=True
            )
        self.background.append(process)
        if not any(re.match(r"fairlead (up|serve)\b", command) for command in commands(block.text)):
            return
        deadline = time.monotonic() + BLOCK_WITHIN_S
        while b"HTTP API: " not in self.log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise self._failed(block, "the cluster does not start")
            time.sleep(0.1)

    def _python(self, block: Block) -> None:
        if self.python is None:
            words = [str(self.folder / "bin" / "fairlead"), "run python blocks"]
            with open(self.log, "ab") as log:
                self.python = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self.env, cwd=self.work
                )
        assert self.python.stdin is not None
        assert self.python.stdout is not None
        path = self.folder / f"line_{block.line}.py"
        path.write_text(block.text, encoding="utf-8")
        self.python.stdin.write(f"{path}\n".encode())
        self.python.stdin.flush()
        if not select.select([self.python.stdout], [], [], BLOCK_WITHIN_S)[0]:
            raise self._failed(block, f"it did not end within {BLOCK_WITHIN_S:g} s")
        if problem := json.loads(self.python.stdout.readline() or b'"the process ended"'):
            raise self._failed(block, problem)

    def _failed(self, block: Block, why: str) -> PageFailed:
        said = self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
        return PageFailed(f"{name_of(self.page)}:{block.line}: {why}\n\n{block.text}\n{said}")

    def close(self) -> None:
        if self.python is not None:
            self.python.kill()
            self.python.communicate()
        for process in reversed(self.background):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
