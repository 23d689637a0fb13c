from __future__ import annotations

import pytest

from tests.packaging.contents import (
    DISTRIBUTION,
    INFO,
    METADATA,
    NEEDED,
    tracked,
    wrong_in_metadata,
    wrong_in_sdist,
    wrong_in_wheel,
)

REPOSITORY = {
    *(name.replace("*", "some") for name in NEEDED if name.startswith("flowactions_plugin/")),
    *(
        f"conformance/{name.replace('*', 'some')}"
        for name in NEEDED
        if name.startswith("flowactions_conformance") and "/examples/" not in name
    ),
    "docs/examples/some/glue.py",
    "hookspecs/flowactions_hookspecs/py.typed",
    "hookspecs/flowactions_hookspecs/host.py",
    "tests/conftest.py",
    "LICENSE",
}
WHEEL = {
    *(name.replace("*", "some") for name in NEEDED),
    "flowactions_hookspecs/host.py",
    *METADATA,
}


def test_a_wheel_that_is_right_passes() -> None:
    """The packages' files and the metadata, and nothing else of the repository."""
    assert wrong_in_wheel(WHEEL, REPOSITORY) == []


@pytest.mark.parametrize("lost", sorted(WHEEL))
def test_a_file_that_a_wheel_lacks_is_found(lost: str) -> None:
    """Each of them: types, templates, revisions, licence."""
    assert f"is missing: {lost}" in wrong_in_wheel(WHEEL - {lost}, REPOSITORY)


@pytest.mark.parametrize(
    "added",
    [
        "tests/conftest.py",
        "flowactions_plugin/__pycache__/plugin.cpython-311.pyc",
        "flowactions_plugin/flowactions.db",
        "docs/glossary.md",
        f"{INFO}/licenses/OTHER",
    ],
)
def test_a_file_that_does_not_belong_into_a_wheel_is_found(added: str) -> None:
    """Tests, caches and databases."""
    assert wrong_in_wheel({*WHEEL, added}, REPOSITORY) == [f"does not belong there: {added}"]


def test_a_test_does_not_belong_into_a_wheel_even_when_the_repository_has_it() -> None:
    """Tests are beside the packages."""
    name = "flowactions_plugin/queue/test_rules.py"
    assert wrong_in_wheel({*WHEEL, name}, {*REPOSITORY, name}) == [f"does not belong there: {name}"]


def test_templates_that_the_repository_lost_are_missed() -> None:
    """What the packages cannot do without is named apart from the repository's files."""
    (template,) = [name for name in WHEEL if "/templates/" in name]
    assert wrong_in_wheel(WHEEL - {template}, REPOSITORY - {template}) == [
        "has no file flowactions_plugin/pages/templates/*.html"
    ]


def test_an_sdist_has_the_repositorys_files() -> None:
    """What a build or an ignored folder left behind is found, and what is missing."""
    names = {f"{DISTRIBUTION}/{name}" for name in (*REPOSITORY, "PKG-INFO")}
    assert wrong_in_sdist(names, REPOSITORY) == []
    assert wrong_in_sdist({*names, f"{DISTRIBUTION}/x.key"}, REPOSITORY) == [
        f"does not belong there: {DISTRIBUTION}/x.key"
    ]
    assert wrong_in_sdist(names, {*REPOSITORY, "tox.ini"}) == [f"is missing: {DISTRIBUTION}/tox.ini"]


def test_the_repositorys_files_are_listed() -> None:
    """From git, so that nothing that is not committed is shipped unseen."""
    found = tracked()
    assert {"pyproject.toml", "flowactions_plugin/py.typed", "tests/packaging/test_contents.py"} <= found
    assert not any(name.startswith(".venv/") for name in found)


def test_metadata_that_differs_is_found() -> None:
    """Name, versions, classifiers, extras and entry points."""
    wrong = wrong_in_metadata("Name: other\n\nVersion: 1", "[flowactions]\nother = other\n")
    assert "does not say: Name: flowactions-plugin" in wrong
    assert "does not say: Provides-Extra: demo" in wrong
    assert any(each.startswith("has the entry points {'flowactions': {'other'") for each in wrong)
