from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.tutorials import FOLDER, NAMES, NotAsWritten, chromium, follow, stated_lines

pytestmark = pytest.mark.ci


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_works_as_it_stands(name: str, tmp_path: Path, store: Path) -> None:
    """Followed literally in an empty folder, each command writes what the page shows; the lines are those it says."""
    if chromium() is None:
        assert os.environ.get("CI") != "true", "in CI the tutorials must be followed: install chromium"
        pytest.skip("there is no Chromium on this machine")
    assert follow(FOLDER / f"{name}.md", tmp_path, store).lines == stated_lines(name)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("```console\n$ echo one\ntwo\n```\n", "and not\ntwo"),
        ("```console\n$ false\n```\n", "ends with 1"),
        ("```console a\n$ echo one\ntwo\n```\n", "ended with 0"),
        ("```console a\none\n```\n", "no command was typed"),
        ("```python\nx = 1\n```\n", "nothing says what is done"),
    ],
)
def test_what_is_not_as_written_is_found(block: str, says: str, tmp_path: Path, store: Path) -> None:
    """Another output, a failure, an end too early, and a block that nobody would follow."""
    (tmp_path / "page.md").write_text(f"# A page\n\n{block}")
    with pytest.raises(NotAsWritten, match=says):
        follow(tmp_path / "page.md", tmp_path, store)
