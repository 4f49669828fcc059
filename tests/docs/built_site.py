"""The built site as tests see it: each page's headings, links and pictures; and a browser that opens pages and searches."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pages import DOCS

from browser import CHROMIUM, FLAGS

_LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


@dataclass
class HtmlPage(HTMLParser):
    """Anchors, links and loaded files of one page."""

    path: Path
    anchors: set[str] = field(default_factory=lambda: {""})
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (name := _LOADED.get(tag)) in given and "canonical" not in given.get("rel", ""):
            self.loaded.append(given[str(name)])

    def target(self, link: str) -> tuple[Path, str]:
        """The file and the anchor that a link of this page leads to."""
        path, _, anchor = unquote(link).partition("#")
        path = path.partition("?")[0]
        return (self.path.parent / path).resolve() if path else self.path, anchor


@dataclass(frozen=True)
class BuiltSite:
    """The folder of a site, and what Sphinx printed."""

    folder: Path
    returncode: int
    output: str

    def pages(self) -> dict[Path, HtmlPage]:
        """All pages by their file."""
        return {path.resolve(): HtmlPage(path.resolve()) for path in sorted(self.folder.rglob("*.html"))}


def build_site(folder: Path) -> BuiltSite:
    """Build the site as `make docs` does."""
    words = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going"]
    words += ["--doctree-dir", str(folder / "doctrees"), str(DOCS), str(folder / "site")]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
    return BuiltSite(folder / "site", done.returncode, done.stdout + done.stderr)


# Opens pages one after another in a frame, as a reader would: looks at them, searches, and switches to dark.
DRIVER = """<!doctype html><html><body><script>
const { pages, queries } = PLAN;
const said = { pages: {}, found: {}, themes: [], errors: [] };
const rest = (ms) => new Promise((done) => setTimeout(done, ms));
const open = (url) => new Promise((done) => {
  document.querySelector("iframe")?.remove();
  const frame = document.createElement("iframe");
  frame.style = "width: 1400px; height: 900px";
  frame.onload = () => done(frame.contentWindow);
  frame.src = url;
  document.body.append(frame);
});
(async () => {
  for (const page of pages) {
    const view = await open(page);
    view.addEventListener("error", (event) => said.errors.push(`${page}: ${event.message}`));
    await rest(50);
    const loaded = view.performance.getEntriesByType("resource").map((one) => one.name);
    said.pages[page] = { heading: view.document.querySelector("article h1")?.textContent ?? "", loaded };
  }
  const view = await open(pages[0]);
  for (let press = 0; press < 3; press++) {
    view.document.querySelector(".theme-toggle").click();
    await rest(20);
    said.themes.push([view.document.body.dataset.theme, view.getComputedStyle(view.document.body).backgroundColor]);
  }
  for (const query of queries) {
    const view = await open(`search.html?q=${encodeURIComponent(query)}`);
    const status = () => view.document.querySelector(".search-summary")?.textContent ?? "";
    for (let wait = 0; wait < 400 && !/found|did not match/.test(status()); wait++) await rest(20);
    said.found[query] = [...view.document.querySelectorAll("#search-results li > a")].map((one) => one.getAttribute("href"));
  }
  document.body.dataset.said = JSON.stringify(said);
})().catch((problem) => { document.body.dataset.said = JSON.stringify({ problem: String(problem) }); });
</script></body></html>"""


def browse(site: BuiltSite, pages: list[str], queries: list[str], profile: Path) -> dict[str, Any]:
    """What a browser sees: the heading and the loaded files of each page, the results of searches, and the themes."""
    driver = site.folder / "driver.html"
    driver.write_text(DRIVER.replace("PLAN", json.dumps({"pages": pages, "queries": queries})), encoding="utf-8")
    flags = [*FLAGS, "--allow-file-access-from-files", "--virtual-time-budget=60000", "--dump-dom"]
    words = [str(CHROMIUM), *flags, f"--user-data-dir={profile}", driver.as_uri()]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=300, check=False)
    driver.unlink()
    seen = next((dict(attrs) for tag, attrs in _tags(done.stdout) if tag == "body" and "data-said" in dict(attrs)), None)
    assert seen is not None, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(seen["data-said"] or "")
    return found


def _tags(text: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
    found: list[tuple[str, list[tuple[str, str | None]]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, attrs))  # type: ignore[method-assign]
    parser.feed(text)
    return found
