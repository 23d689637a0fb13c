from __future__ import annotations

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


def test_what_a_wheel_lacks_or_holds_besides_is_named() -> None:
    """The packages' files and the metadata, and no test, cache or database, even when the repository has it."""
    assert wrong_in_wheel(WHEEL, REPOSITORY) == []
    for lost in WHEEL:
        assert f"is missing: {lost}" in wrong_in_wheel(WHEEL - {lost}, REPOSITORY)
    for added in ("docs/glossary.md", f"{INFO}/licenses/OTHER"):
        assert wrong_in_wheel({*WHEEL, added}, REPOSITORY) == [f"does not belong there: {added}"]
    for added in ("__pycache__/plugin.cpython-311.pyc", "flowactions.db", "queue/test_rules.py"):
        name = f"flowactions_plugin/{added}"
        assert wrong_in_wheel({*WHEEL, name}, {*REPOSITORY, name}) == [f"does not belong there: {name}"]
    (template,) = [name for name in WHEEL if "/templates/" in name]
    needed = ["has no file flowactions_plugin/pages/templates/*.html"]
    assert wrong_in_wheel(WHEEL - {template}, REPOSITORY - {template}) == needed


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
