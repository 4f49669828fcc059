"""Every command and every Python block of the documentation runs as it stands.

A page's blocks run in order, in one folder, with `examples/` at hand. Comments above a block say how:

- `<!-- not run: why -->`: the block cannot run in a test.
- `<!-- file: jobs.csv -->`: the block is written to that file, and not run.
- `<!-- background -->`: the block keeps running until the end of the page.
- `<!-- exit: 3 -->`: the exit code of the block's last command.

Output is not compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from pages import Block, PageRunner, blocks, commands, name_of, pages

pytestmark = pytest.mark.long

MARKS = {"not run", "file", "background", "exit", "generated"}
MAX_NOT_RUN = 81
"""Blocks that need a GPU, PyTorch, another machine or minutes."""

PARSED = {"yaml": yaml.safe_load, "json": json.loads}

BLOCKS = {page: blocks(page.read_text(encoding="utf-8")) for page in pages()}
RUN = {
    page: found
    for page, found in BLOCKS.items()
    if any(block.language in ("console", "python") and "not run" not in block.marks for block in found)
}
NOT_RUN = {page: [block for block in found if "not run" in block.marks] for page, found in BLOCKS.items()}


def run_page(page: Path, address: Path, folder: Path) -> None:
    runner = PageRunner(page, folder, address)
    try:
        for block in RUN[page]:
            if "not run" not in block.marks:
                runner.run(block)
    finally:
        runner.close()


# Classes run at the same time on the workers of a test run, and pages mostly wait.


@pytest.mark.parametrize("page", list(RUN)[0::3], ids=name_of)
class TestBlocksOfTheFirstThird:
    def test_run(self, page: Path, address: Path, tmp_path: Path) -> None:
        run_page(page, address, tmp_path)


@pytest.mark.parametrize("page", list(RUN)[1::3], ids=name_of)
class TestBlocksOfTheSecondThird:
    def test_run(self, page: Path, address: Path, tmp_path: Path) -> None:
        run_page(page, address, tmp_path)


@pytest.mark.parametrize("page", list(RUN)[2::3], ids=name_of)
class TestBlocksOfTheLastThird:
    def test_run(self, page: Path, address: Path, tmp_path: Path) -> None:
        run_page(page, address, tmp_path)


def test_blocks_that_cannot_run_here_say_why_and_are_few() -> None:
    skipped = [(f"{name_of(page)}:{block.line}", block.marks["not run"]) for page, found in NOT_RUN.items() for block in found]
    assert [place for place, why in skipped if not why] == []
    assert len(skipped) <= MAX_NOT_RUN, f"{len(skipped)} blocks are not run: {skipped}"


@pytest.mark.parametrize("page", BLOCKS, ids=name_of)
def test_blocks_are_of_a_known_form(page: Path) -> None:
    for block in BLOCKS[page]:
        where = f"{name_of(page)}:{block.line}"
        assert set(block.marks) <= MARKS or not block.language, f"{where}: unknown comment in {sorted(block.marks)}"
        if block.language == "console":
            assert commands(block.text), f"{where}: a console block without a line that begins with '$ '"
        if block.language in PARSED:
            _parsed(block, where)


def _parsed(block: Block, where: str) -> None:
    try:
        PARSED[block.language](block.text.replace("…", ""))
    except Exception as problem:
        raise AssertionError(f"{where}: this is no {block.language}: {problem}") from problem
