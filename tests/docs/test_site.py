"""The site builds without warnings, its links and pictures are there, and it works in a browser without a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from built_site import BuiltSite, browse, build_site
from pages import DOCS, ROOT, name_of, outside_blocks, pages

from browser import CHROMIUM
from test_text_guard import hits_of_page, lines

pytestmark = pytest.mark.long

OPENED = {
    "index.html": "Fairlead",
    "architecture.html": "Architecture",
    "start/install.html": "Install",
    "guides/gangs.html": "Run a job with several workers",
    "adr/index.html": "Architecture decision records",
    "papers/performance.html": "Performance",
    "reference/cli.html": "Command line",
    "reference/policies.html": "Policies",
    "reference/python-api.html": "Python API",
    "reference/task-file.html": "Task file",
}
"""Pages that the browser opens, and the heading of each."""

SEARCHED = {
    "gang": "guides/gangs.html",
    "exit codes": "reference/exit-codes.html",
    "prometheus": "reference/prometheus.html",
    "tiresias": "reference/policies.html",
    "simulate": "reference/python-api.html",
    "JobSubmitted": "reference/events.html",
}
"""What the browser searches for, and a page that must be among the results."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuiltSite:
    return build_site(tmp_path_factory.mktemp("docs"))


def test_the_site_builds_without_warnings(site: BuiltSite) -> None:
    problems = [line for line in site.output.splitlines() if re.search("WARNING|ERROR|Error", line)]
    assert not problems
    assert site.returncode == 0, site.output[-3000:]


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: BuiltSite) -> None:
    found, broken = site.pages(), []
    for page in found.values():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, anchor = page.target(link)
            if not path.exists() or (path in found and anchor not in found[path].anchors):
                broken.append(f"{page.path.relative_to(site.folder.resolve())}: {link}")
    assert not broken


def test_the_python_reference_has_builders_tables_and_short_signatures(site: BuiltSite) -> None:
    text = (site.folder / "reference" / "python-api.html").read_text(encoding="utf-8")
    for anchor in ("JobBuilder.workers", "Harness.submit", "Harness.round", "job"):
        assert f'id="fairlead.testing.{anchor}"' in text
    plain = re.sub(r"<[^>]+>", "", text)
    assert all(word in plain for word in ("gpus_in_use", "first_started_s", "A pyarrow.Table with one row per job"))
    assert "TypeAliasForwardRef" not in plain
    assert "JobSubmitted | " not in plain
    assert "~fairlead" not in plain


def test_the_site_loads_only_its_own_files(site: BuiltSite) -> None:
    missing = []
    for page in site.pages().values():
        for name in page.loaded:
            if not name.startswith("data:") and (re.match(r"([a-z]+:)?//", name) or not page.target(name)[0].exists()):
                missing.append(f"{page.path.name}: {name}")
    assert not missing


def test_generated_pages_have_plain_words_and_short_sentences(site: BuiltSite) -> None:
    generated = sorted((DOCS / "reference" / "generated").glob("*.md"))
    assert generated
    assert not [line for page in generated for line in lines(name_of(page), hits_of_page(page))]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine to open the site in")
def test_a_browser_reads_searches_and_switches_to_dark_without_a_network(site: BuiltSite, tmp_path: Path) -> None:
    seen = browse(site, list(OPENED), list(SEARCHED), tmp_path / "profile")
    assert "problem" not in seen, seen
    assert seen["errors"] == []
    for page, heading in OPENED.items():
        assert seen["pages"][page]["heading"].startswith(heading)
        assert all(name.startswith(("file:", "data:")) for name in seen["pages"][page]["loaded"])
    themes = dict(seen["themes"])
    assert {"dark", "light"} <= set(themes)
    assert themes["dark"] != themes["light"]
    for query, page in SEARCHED.items():
        results = [link.partition("#")[0].partition("?")[0] for link in seen["found"][query]]
        assert page in results, f"{query}: {results[:10]}"


# In a plain view of the repository, as Git hosts show it.


def slugs(page: Path) -> set[str]:
    """The anchors that a Git host gives to the headings of a page."""
    text, found = outside_blocks(page.read_text(encoding="utf-8")), set[str]()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*#*$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = sum(1 for one in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", one))
        found.add(f"{slug}-{number}" if slug in found else slug)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_of_a_page_are_valid_in_the_repository(page: Path) -> None:
    text, broken = re.sub(r"`[^`\n]*`", "", outside_blocks(page.read_text(encoding="utf-8"))), []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            broken.append(target)
        elif anchor and file.suffix == ".md" and "<!-- generated:" not in file.read_text(encoding="utf-8"):
            broken += [target] if anchor not in slugs(file) else []
    assert not broken


def test_every_picture_of_the_documentation_is_used() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    pictures = (path for path in (DOCS / "img").rglob("*") if path.is_file())
    assert not [name_of(path) for path in pictures if path.name not in text]
