from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.fences import FENCE
from tests.docs.tutorials import FOLDER, NAMES, NotAsWritten, chromium, follow, stated_lines

pytestmark = pytest.mark.ci


def test_every_tutorial_is_followed() -> None:
    """The names are those of the pages."""
    assert sorted(NAMES) == sorted(page.stem for page in FOLDER.glob("*.md"))


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_works_as_it_stands(name: str, tmp_path: Path, store: Path) -> None:
    """Followed literally in an empty folder, each command writes what the page shows; the lines are those it says."""
    if chromium() is None:
        assert os.environ.get("CI") != "true", "in CI the tutorials must be followed: install chromium"
        pytest.skip("there is no Chromium on this machine")
    assert follow(FOLDER / f"{name}.md", tmp_path, store).lines == stated_lines(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_is_told_which_file_it_is(name: str) -> None:
    """The text before a file's block names it, for the word behind the fence is not shown."""
    before, *rest = FENCE.split((FOLDER / f"{name}.md").read_text())
    while rest:
        _, _, info, _, after, *rest = rest
        for word in info.split()[1:]:
            assert "." not in word or f"`{word}`" in before, word
        before = after


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
