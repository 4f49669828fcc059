"""The runner of code blocks notices what is wrong, and lets a page do what its reader would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages import ROOT, PageFailed, PageRunner, blocks, commands


@pytest.fixture
def run(address: Path, tmp_path: Path) -> Iterator[Callable[[str], PageRunner]]:
    runner = PageRunner(ROOT / "README.md", tmp_path, address)

    def run_text(text: str) -> PageRunner:
        for block in blocks(text.replace("'''", "```")):
            runner.run(block)
        return runner

    yield run_text
    runner.close()


def test_blocks_have_languages_lines_and_the_comments_above_them() -> None:
    text = "intro\n\n<!-- file: a.csv -->\n```csv\nx\n```\n\n- item\n\n"
    text += "  <!-- exit: 3 -->\n  ```console\n  $ a \\\n    b\n  said\n  ```\n"
    csv, console = blocks(text)
    assert (csv.language, csv.text, csv.line, csv.marks) == ("csv", "x\n", 4, {"file": "a.csv"})
    assert console.marks == {"exit": "3"}
    assert commands(console.text) == ["a \\\n  b"]


def test_a_comment_counts_only_for_the_block_below_it() -> None:
    assert blocks("<!-- exit: 3 -->\n\na sentence\n\n```console\n$ true\n```\n")[0].marks == {}


def test_here_documents_belong_to_their_command() -> None:
    assert commands("$ cat > a <<'EOF'\nx\nEOF\n$ cat a\nx\n") == ["cat > a <<'EOF'\nx\nEOF", "cat a"]


def test_files_folders_and_variables_last_to_the_next_block(run: Callable[[str], PageRunner]) -> None:
    run(
        "<!-- file: in/jobs.csv -->\n'''csv\nname,submitted_s,duration_s\na,0,60\n'''\n"
        "'''console\n$ cd in\n$ export POLICY=las\n'''\n"
        "'''console\n$ fairlead simulate --trace jobs.csv --policy $POLICY --cluster 1xv100:1 --json > ../run.json\n'''\n"
        "'''python\nimport json\nrun = json.load(open('run.json'))\n'''\n"
        "'''python\nassert run['metrics']['jobs'] == 1 if 'metrics' in run else run\n'''\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'''console\n$ fairlead simulate --policy no-such-policy\n'''", "exit code 2, expected 0"),
        ("<!-- exit: 3 -->\n'''console\n$ fairlead policies\n'''", "exit code 0, expected 3"),
        ("'''console\n$ false\n$ true\n'''", "exit code 1, expected 0"),
        ("'''console\n$ false | cat\n'''", "exit code 1, expected 0"),
        ("'''python\nassert 1 == 2\n'''", "AssertionError"),
        ("<!-- background -->\n'''console\n$ fairlead up --cluster nonsense\n'''", "the cluster does not start"),
    ],
)
def test_what_goes_wrong_fails_the_page(run: Callable[[str], PageRunner], text: str, said: str) -> None:
    with pytest.raises(PageFailed, match=said):
        run(text)


def test_a_page_has_a_cluster_until_it_ends(run: Callable[[str], PageRunner]) -> None:
    runner = run(
        "<!-- background -->\n'''console\n$ fairlead up --round 1 --cluster 1xv100:1\n'''\n"
        "'''console\n$ fairlead submit --name one -- true\n$ fairlead queue | head -3\n'''\n"
        "'''python\nimport fairlead\nassert fairlead.connect().job('one').name == 'one'\n'''\n"
        "<!-- exit: 3 -->\n'''console\n$ fairlead info no-such-job\n'''\n"
    )
    runner.close()
    assert runner.background[0].returncode is not None
