"""The bundle of CodeMirror in the reference host."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.editor.codemirror import BUNDLE, LICENCE, VERSIONS, banner, build, versions


def test_the_bundle_is_of_the_versions_that_are_named() -> None:
    """Its first line names each package, every one has an exact version, and the licence stands beside it."""
    assert BUNDLE.read_text().split("\n", 1)[0] == banner()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions().values())
    licence = LICENCE.read_text()
    assert all(name in licence for name in versions())
    assert "Permission is hereby granted, free of charge" in licence


def test_the_bundle_is_small_and_asks_nobody() -> None:
    """It is one file that imports nothing, and holds no address but that of XML's namespaces."""
    script = BUNDLE.read_text()
    assert len(script) < 400_000
    assert re.findall(r"\bimport\b\s*[({\"']", script) == []
    assert set(re.findall(r"https?://[^/\"'` ]+", script)) <= {"http://www.w3.org"}


@pytest.mark.node
def test_the_bundle_can_be_built_again(tmp_path: Path) -> None:
    """From the named versions the same bytes are made."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm on this machine")
    assert json.loads(VERSIONS.read_text())["private"]
    built = build(tmp_path)
    assert built.script == BUNDLE.read_text()
    assert built.licence == LICENCE.read_text()
