"""Every fenced block of README and the documentation is run by a test, or checked here.

A part of ``python -m tests.docs.lint``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs import tutorials
from tests.docs.checking import BY_LANGUAGE, Wrong, check_mention
from tests.docs.fences import FENCE, ROOT, Block, blocks_of
from tests.docs.test_examples import GUIDES
from tests.receivers.languages import LANGUAGES


class Run(NamedTuple):
    """Blocks that a test runs.

    Attributes:
        page: relative to the repository.
        language: of the blocks.
        number: how many blocks of that language the page has; ``None``: the test itself fails when there is another.
        test: the module, and the function in it, that runs them.
    """

    page: str
    language: str
    number: int | None
    test: str


EXAMPLES = "tests.docs.test_examples"
ENGINES = "tests.conformance.test_engines"
RECEIVING = "docs/how-to/receive-webhooks.md"

RUN = [
    *(Run("README.md", fence, None, f"{EXAMPLES}:test_the_readmes_lines_work") for fence in ("python", "http")),
    *(
        Run("docs/index.md", fence, 1, f"{EXAMPLES}:test_the_landing_page_shows_the_readmes_host_and_request")
        for fence in ("python", "http")
    ),
    Run(
        "docs/how-to/write-a-node-type.md",
        "python",
        None,
        f"{EXAMPLES}:test_another_plugin_has_as_many_lines_as_its_page_says",
    ),
    Run(
        "docs/how-to/alerts.md",
        "python",
        1,
        "tests.plugin.alerts.test_owner:test_the_owner_gets_a_mail_once_a_day",
    ),
    Run("docs/how-to/watch.md", "python", 2, "tests.docs.test_watch:test_log_records_become_json"),
    *(
        Run("docs/how-to/production.md", each, count, "tests.docs.test_production:test_the_page_is_followed")
        for each, count in (("python", 1), ("sql", 2))
    ),
    Run("docs/reference/contract.md", "python", 1, f"{EXAMPLES}:test_the_example_of_the_contract_works"),
    *(
        Run(f"docs/how-to/use-with-{engine}.md", language, None, f"{ENGINES}:test_its_guide_can_be_followed")
        for engine, more in (("langgraph", ()), ("spiffworkflow", ("xml",)), ("dbos", ()))
        for language in ("console", "python", *more)
    ),
    Run("docs/how-to/use-with-langgraph.md", "json", 1, f"{ENGINES}:test_its_own_server_runs_the_graph"),
    Run(RECEIVING, "sh", 1, "tests.docs.test_signature:test_a_receiver_can_be_tried_without_the_sender"),
    *(
        Run(
            RECEIVING,
            each.fence,
            1,
            "tests.receivers.test_functions:test_every_language_gives_the_same_verdicts",
        )
        for each in LANGUAGES
        if each.fence != "python"
    ),
]
"""Beside the guides, whose Python blocks all run, and the tutorials, which are followed as a whole."""

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs"]


def pages() -> list[Path]:
    """Give every page."""
    found = (ROOT / page for page in PAGES)
    return [each for path in found for each in ([path] if path.is_file() else sorted(path.rglob("*.md")))]


BLOCKS = [block for page in pages() for block in blocks_of(page)]


def is_run(block: Block) -> bool:
    """Tell whether a test runs a block."""
    if block.page.startswith("docs/tutorials/"):
        return block.page in {f"docs/tutorials/{name}.md" for name in tutorials.NAMES}
    if block.language == "python" and block.page in {f"docs/how-to/{page}" for page in GUIDES}:
        return True
    return any((block.page, block.language) == (each.page, each.language) for each in RUN)


def of_blocks() -> Iterator[str]:
    """A block is run by a test, or can be checked: shell lines against commands, options and settings, data by parsing."""
    for block in BLOCKS:
        if is_run(block):
            continue
        if block.language not in BY_LANGUAGE:
            yield f"{block} is run by no test: see RUN, or call it text if it is output"
            continue
        try:
            BY_LANGUAGE[block.language](block)
        except Wrong as exc:
            yield f"{block}: {exc}"
    for run in RUN:
        module, _, name = run.test.partition(":")
        if not callable(getattr(importlib.import_module(module), name, None)):
            yield f"the test {run.test} is not there"
        found = [block for block in BLOCKS if (block.page, block.language) == (run.page, run.language)]
        if not found or len(found) != (run.number or len(found)):
            yield f"{run.page} has {len(found)} blocks of {run.language}, and {run.test} runs {run.number}"


def of_sentences() -> Iterator[str]:
    """A command with its options, or a setting, in code type outside of blocks, exists; decisions tell what was."""
    for page in pages():
        if page.parent.name == "decisions" or page.name == "CHANGELOG.md":
            continue
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCE.sub("", page.read_text())):
            try:
                check_mention(" ".join(code.split()))
            except Wrong as exc:
                yield f"{page.relative_to(ROOT)}: `{code}`: {exc}"
