"""The site of the documentation: the Markdown of this repository as it is.

``python -m sphinx -W --keep-going -n -b html -c docs . build/site``, from the repository's root, which is the source
directory: so links of the pages to each other, to CHANGELOG.md or to source files are the same here and there.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = PROJECT["name"]
release = PROJECT["version"]
author = copyright = f"the authors of {project}"  # noqa: A001  Sphinx's name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_member_order = "bysource"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of annotations: links between pages are those of Markdown
root_doc = "docs/index"
include_patterns = ["docs/**", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [
    ".*",
    "build",
    "conformance",
    "dist",
    "flowactions_plugin",
    "hookspecs",
    "tests",
    "**/node_modules",
]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages of one clause begin with its anchor

html_theme = "furo"
html_title = project
html_copy_source = False
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_static_path = ["static"]
html_js_files = ["copy.js", "numbers.js"]
html_css_files = ["copy.css"]
html_search_scorer = str(ROOT / "docs" / "static" / "scorer.js")

REPOSITORY = os.environ.get("DOCS_REPOSITORY", "")
"""Where the repository's folders are shown, for example ``https://example.com/project/tree/main``; empty: nowhere."""

BEHAVIOUR = "docs/reference/behaviour/README"

WITH_CONTENTS = ("docs/index", BEHAVIOUR)
"""Pages whose links to other pages are the table of contents below them."""

ADDED = {
    BEHAVIOUR: ("Where the code and the tests cite each clause", "clauses", "render"),
    "docs/reference/commands": ("Each command", "commands", "each_command"),
    "docs/reference/conformance": ("All checks", "checks", "render"),
    "docs/reference/errors": ("Codes of the chat provider", "chat_codes", "render"),
    "docs/reference/log-events": ("All events", "log_events", "render"),
    "docs/reference/metrics": ("All metrics", "metrics", "render"),
}
"""Pages below which the site has what is made of the code, so that git has no copy: heading, module of `tests.docs`, function."""

DRIVER = """
```{eval-rst}
.. automodule:: flowactions_conformance.kit.under_test
   :members:
   :exclude-members: Wire
```
"""
"""Below the page on what a host author writes for the kit."""

HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")
ID = re.compile(r'<a id="([^"]+)">')


class SearchWithStatuses(SearchEnglish):
    """Also finds numbers of three digits, such as 429: Sphinx has no numbers in its index."""

    def word_filter(self, word: str) -> bool:
        """Tell whether a word is in the index."""
        return (word.isdigit() and len(word) == 3) or super().word_filter(word)


def add_contents(_app: Any, docname: str, source: list[str]) -> None:
    """Make a table of contents of a page's links, one for each of its sections."""
    if docname not in WITH_CONTENTS:
        return
    is_root = docname == root_doc
    parts = HEADING.split(source[0])[1:] if is_root else ["", source[0]]
    listed = set(LINK.findall(source[0])) if is_root else set[str]()
    begun: set[str] = set()
    for caption, section in zip(parts[::2], parts[1::2], strict=True):
        pages = [page for page in dict.fromkeys(LINK.findall(section)) if is_root or "/" not in page]
        pages = [page for page in pages if page not in begun]
        if pages and is_root:
            pages += _others(Path(pages[0]).parent, listed)
        begun.update(pages)
        if pages:
            option = f":caption: {caption}\n" if caption else ""
            source[0] += "\n\n```{toctree}\n:hidden:\n" + option + "\n" + "\n".join(pages) + "\n```\n"


def leave_out_decisions(_app: Any, docname: str, source: list[str]) -> None:
    """Keep decisions out of the table of contents: their own page lists them."""
    if docname.startswith("docs/decisions/0"):
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"


def add_what_is_made_of_the_code(_app: Any, docname: str, source: list[str]) -> None:
    """Put tables below their pages: the index of clauses, the checks of the kit and its driver, log events, documents of ``--json``."""
    if docname in ADDED:
        heading, module, function = ADDED[docname]
        sys.path.insert(0, str(ROOT))
        made = getattr(importlib.import_module(f"tests.docs.{module}"), function)()
        source[0] += f"\n\n## {heading}\n\n{made}"
    elif docname == "docs/reference/driver":
        source[0] += DRIVER


def _others(folder: Path, listed: set[str]) -> list[str]:
    """Give the pages of a folder that the index does not name: a page is never without a place."""
    if folder.name in {"", ".."}:
        return []
    found = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}/{page.name}" for page in found if f"{folder}/{page.name}" not in listed]


def find_targets(app: Any, doctree: nodes.document) -> None:
    """Resolve what Sphinx and MyST cannot: anchors that pages set by themselves, as ``#2.4``, and links to folders."""
    own = {name for raw in doctree.findall(nodes.raw) for name in ID.findall(raw.astext())}
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for name in own:
        slugs.setdefault(name, (0, name, name))
    folder = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(doctree.findall(addnodes.pending_xref)):
        target = link["reftarget"]
        if target in own:
            link.replace_self(nodes.reference("", "", *link.children, refid=target, internal=True))
        elif target.endswith("/") and (folder / target).is_dir():
            link.replace_self(_link_to_folder((folder / target).resolve(), link))


def _link_to_folder(folder: Path, link: nodes.Element) -> nodes.Element:
    """Lead to where the repository is shown; without such a place, leave the link's text."""
    if not REPOSITORY:
        return nodes.inline("", "", *link.children)
    where = f"{REPOSITORY.rstrip('/')}/{folder.relative_to(ROOT).as_posix()}"
    return nodes.reference("", "", *link.children, refuri=where, internal=False)


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above."""
    app.add_search_language(SearchWithStatuses)
    app.connect("source-read", add_contents)
    app.connect("source-read", add_what_is_made_of_the_code)
    app.connect("source-read", leave_out_decisions)
    app.connect("doctree-read", find_targets)
    return {"parallel_read_safe": True}
