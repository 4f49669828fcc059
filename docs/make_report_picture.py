"""Draws docs/img/report-charts.png, and docs/img/report.png for README.md: HTML reports as headless Chromium shows them.

Run it in the repository after a change to the report, or to results: `.venv/bin/python docs/make_report_picture.py`. It prints
the table of the first command of README.md."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import fairlead

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent / "tests"))

from browser import CHROMIUM  # noqa: E402

IMAGES = DOCS / "img"


def picture(page: Path, name: str, height: int) -> None:
    """Take a picture of the upper part of a page."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size=1280,{height}"]
    command += ["--virtual-time-budget=5000", f"--screenshot={IMAGES / name}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Compare policies on generated jobs, write the reports, and take the pictures."""
    if CHROMIUM is None:
        sys.exit("no Chromium on this machine: install the package chromium")
    trace = fairlead.Generator(jobs=60, jobs_per_hour=8.0, workers="multiple", durations=(1800.0, 5400.0, 14400.0), users=4)
    result = fairlead.compare(trace, "16xv100:4", ["fifo", "las", "srtf"], processes=1)
    first = re.search(r"^fairlead (compare .*)$", (DOCS.parent / "README.md").read_text(), re.MULTILINE)
    assert first is not None, "README.md compares policies"
    with tempfile.TemporaryDirectory() as folder:
        page = result.report(Path(folder) / "report.html", title="Three policies on the same 60 jobs")
        picture(page, "report-charts.png", 1965)
        words = shlex.split(first[1])
        subprocess.run([sys.executable, "-m", "fairlead.cli.main", *words], check=True, cwd=folder)
        picture(Path(folder, words[-1]), "report.png", 1480)


if __name__ == "__main__":
    main()
