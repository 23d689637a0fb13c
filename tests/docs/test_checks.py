from __future__ import annotations

from flowactions_conformance.kit.registry import PROFILES, all_checks
from tests.docs.checks import ABOUT, COMMAND, PAGE, render


def test_the_page_of_checks_is_current() -> None:
    """It is what the registry gives."""
    assert PAGE.read_text() == render(), COMMAND


def test_every_check_and_profile_is_on_it() -> None:
    """With its clause; the kit's report has the causes."""
    text = render()
    assert set(ABOUT) == set(PROFILES)
    for check in all_checks():
        assert f"></a>{check.id} " in text
        assert check.clause
        assert check.causes
