"""Settings of the documentation site: `make docs` builds it into out/docs.

The site needs no network: it has no external font, script or picture, and its search works from file://. To add a page, write
it; to give it a place in the navigation, add one line to `NAVIGATION`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.inspect import TypeAliasForwardRef

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

sys.path.insert(0, str(DOCS))

import generate_reference  # noqa: E402

NAVIGATION = {
    "Start": [
        "start/comparison",
        "start/install",
        "start/quickstart-researcher",
        "start/quickstart-operator",
        "start/quickstart-engineer",
        "start/*",
    ],
    "Concepts": ["concepts", "glossary", "parts"],
    "Guides": [
        "guides/local-cluster",
        "guides/several-machines",
        "guides/add-and-remove-nodes",
        "guides/slurm",
        "guides/slurm-native",
        "guides/ray",
        "guides/kubernetes",
        "guides/training-script",
        "guides/submit-jobs",
        "guides/containers",
        "guides/manage-jobs",
        "guides/move-from-slurm",
        "guides/gangs",
        "guides/elastic-jobs",
        "guides/will-it-fit",
        "guides/gpu-sharing",
        "guides/profile-and-predict",
        "guides/change-the-scheduler",
        "guides/set-quotas",
        "guides/secure-a-cluster",
        "guides/back-up-and-upgrade",
        "guides/high-availability",
        "guides/console",
        "guides/monitor-a-cluster",
        "guides/alerts",
        "guides/troubleshoot",
        "guides/simulate-your-trace",
        "guides/compare-policies",
        "guides/what-if",
        "guides/shadow",
        "guides/sweeps",
        "guides/write-a-policy",
        "guides/write-a-plugin",
        "guides/synthesizer",
        "guides/inference",
        "guides/*",
        "examples/*",
        "*",
    ],
    "Reference": [
        "reference/cli",
        "reference/task-file",
        "reference/scheduler-file",
        "reference/cluster-file",
        "reference/policies",
        "reference/parameters",
        "reference/presets",
        "reference/trace-formats",
        "reference/throughput-catalogue",
        "reference/result-metrics",
        "reference/python-api",
        "reference/http-api",
        "reference/prometheus",
        "reference/journal",
        "reference/events",
        "reference/exit-codes",
        "reference/*",
    ],
    "Papers and measurements": [
        "papers/reproduction",
        "papers/agreement",
        "papers/performance",
        "papers/profiles",
        "papers/training-steps",
        "papers/prediction",
        "papers/*",
    ],
    "Project": ["architecture", "adr/index", "changelog", "contributing"],
}
"""The pages of each part in their order. Pages that do not exist are left out; a pattern adds the pages not named before it."""

project = "Fairlead"
author = "The Fairlead authors"
copyright = "the Fairlead authors"  # Sphinx asks for this name
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["reference/generated", "_static"]
source_suffix = {".md": "markdown"}
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
_ALIASES = ("Event", "Memo", "Ints", "Floats", "Bools", "TraceLike", "ClusterLike", "SchedulerLike", "TableLike", "Schedule")
autodoc_type_aliases = {name: name for name in _ALIASES}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"  # docstrings are plain text with names in single back ticks
add_module_names = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block", "attrs_inline"]
myst_heading_anchors = 5
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"Fairlead {release}"
html_logo = "_static/fairlead.svg"
html_favicon = "_static/fairlead.svg"
html_static_path = ["_static"]
html_css_files = ["fairlead.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # Sphinx fetches pages for it, which browsers refuse from file://
html_theme_options = {
    "sidebar_hide_name": False,
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#0b5c8a",
        "color-brand-content": "#0b5c8a",
        "color-brand-visited": "#0b5c8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cb8e6",
        "color-brand-content": "#6cb8e6",
        "color-brand-visited": "#6cb8e6",
    },
}
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/jobs/README.md": "examples/jobs.md",
    "examples/third_party_policy/README.md": "examples/third-party-policy.md",
}
"""Files above docs/ that are pages of the site; a link to a folder means its README."""


def navigation(names: set[str]) -> str:
    """The tables of contents: a hidden one per part, of the pages that exist."""
    listed: set[str] = {"index"}
    named = {name for patterns in NAVIGATION.values() for name in patterns}
    text = ""
    for caption, patterns in NAVIGATION.items():
        found = []
        for pattern in patterns:
            expression = re.escape(pattern).replace(r"\*", "[^/]*")
            unnamed = (name for name in names - named - listed if re.fullmatch(expression, name))
            found += [pattern] if pattern in names else sorted(unnamed)
            listed.update(found)
        if found:
            entries = "\n".join(found)
            text += f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {caption}\n\n{entries}\n```\n"
    return text


def follow_links_outside(name: str, text: str) -> str:
    """Links to files above docs/ that are pages of the site lead to these pages. Other files are copied into the site."""

    def target(found: re.Match[str]) -> str:
        file = (DOCS / name).parent.joinpath(found[1]).resolve()
        file = file / "README.md" if file.is_dir() else file
        page = OUTSIDE.get(str(file.relative_to(ROOT))) if file.is_relative_to(ROOT) else None
        return f"]({'../' * name.count('/')}{page}{found[2] or ''})" if page else found[0]

    return re.sub(r"\]\(((?:\.\./)+[^)#\s]*)(#[^)]*)?\)", target, text)


def insert_generated(app: Sphinx, text: str) -> str:
    """Put generated parts where a page has `<!-- generated: NAME -->`."""

    def part(found: re.Match[str]) -> str:
        file = generate_reference.FOLDER / f"{found[1]}.md"
        app.env.note_dependency(str(file))
        return file.read_text(encoding="utf-8")

    return re.sub(r"^<!-- generated: ([a-z-]+) -->$", part, text, flags=re.MULTILINE)


def read_source(app: Sphinx, name: str, content: list[str]) -> None:
    """Complete a page's text before it is parsed."""
    content[0] = insert_generated(app, follow_links_outside(name, content[0]))
    if name == "index":
        content[0] += navigation(set(app.env.found_docs))
    elif name == "adr/index":
        content[0] += "\n```{toctree}\n:hidden:\n:maxdepth: 1\n:glob:\n\n0*\n```\n"


def inline_attribute(docstring: GoogleDocstring) -> tuple[str, list[str]]:
    """The whole docstring of a property or an attribute: Napoleon takes the words before a colon as its type."""
    return "", GoogleDocstring(docstring._dedent(docstring._consume_to_end()), docstring._config).lines()


def short_signature(_app: Sphinx, *given: object) -> tuple[str | None, ...]:
    """A signature with the names of aliases, without modules; `...` for defaults that are made by a function."""

    def short(text: object) -> str | None:
        if not isinstance(text, str):
            return None
        text = re.sub(r"~(\w+\.)+(?=\w)", "", text).replace("<factory>", "...")
        return re.sub(r"JournalOpened( \| \w+)+", "Event", text)

    return tuple(map(short, given[-2:]))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    TypeAliasForwardRef.__repr__ = lambda alias: alias.name  # type: ignore[method-assign]
    app.connect("autodoc-process-signature", short_signature)
    GoogleDocstring._consume_inline_attribute = inline_attribute  # type: ignore[method-assign]
    generate_reference.generate()
    app.add_lexer("csv", TextLexer)  # Pygments has none
    app.connect("env-get-outdated", lambda *_: ["index", "adr/index"])  # they list the others
    app.connect("source-read", read_source)
