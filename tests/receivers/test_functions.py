from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flowactions_conformance.receiver.verify import verify
from flowactions_hookspecs import FlowActions, HostOrigin, Origin
from flowactions_plugin.egress.signature import sign
from tests.owning import own_webhook
from tests.receivers.cases import COMMAND, PAGE, SIGNATURE, TIMESTAMP, every, render
from tests.receivers.languages import LANGUAGES, Language, is_secrets
from tests.receivers.middle import CHANGES, in_the_middle
from tests.support import SmallHost, development
from tests.waiting import until

pytestmark = [pytest.mark.receivers, pytest.mark.ci]


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.title)
def language(request: pytest.FixtureRequest) -> Language:
    made: Language = request.param
    return made


def test_every_language_gives_the_same_verdicts(language: Language, tmp_path: Path) -> None:
    """The function of the page, in one process, decides every case as the file of cases says (§5.3.4, §5.3.5).

    What is neither a secret nor several is refused with an error.
    """
    cases = json.loads(PAGE.read_text())
    language.place(tmp_path)
    verdicts = language.verdicts(tmp_path, cases)
    assert len(verdicts) == len(cases)
    expected = [json.dumps(case["verified"]) if is_secrets(case["secrets"]) else "refused" for case in cases]
    told = zip(cases, verdicts, expected, strict=True)
    assert [(case["name"], verdict) for case, verdict, right in told if verdict != right] == []


OLD, NEW, FOREIGN = "the first secret", "schlüssel-鍵", "of somebody else"
RAW = b'{ "total":1.10,"note":"\xff\xfe"}\r\n'
"""No parser of JSON gives these bytes back."""


async def test_every_language_verifies_deliveries_of_the_worker(
    language: Language, tmp_path: Path, sqlite_url: str
) -> None:
    """A server of the language takes what the worker sends, and nothing that was changed, late, unsigned or foreign.

    The receiver has both secrets of a rotation; the host changes its own in between (§5.3.4, §5.3.5, §5.3.6).
    """
    secrets: dict[str, str | None] = {"order": OLD, "unsigned": None, "foreign": FOREIGN}

    async def signing_secret(origin: Origin) -> str | None:
        assert isinstance(origin, HostOrigin)
        return secrets[origin.id]

    host = SmallHost(development(sqlite_url))
    host.signing_secret = signing_secret  # type: ignore[method-assign]
    actions = FlowActions.load(host)
    language.place(tmp_path)

    async def answers(url: str, *deliveries: tuple[str, str]) -> dict[str, int | None]:
        """Have the worker deliver to paths, for origins; give what the receiver answered, by path."""
        host.finished.clear()
        for path, origin in deliveries:
            whose = HostOrigin(organization_id="acme", name="order-placed", id=origin)
            await actions.enqueue(
                own_webhook(url=url + path, origin=whose, entity=path, body=RAW, max_attempts=1)
            )
        await until(lambda: len(host.finished) == len(deliveries))
        return {urlsplit(each.url).path: each.status_code for each in host.finished}

    with language.serving(tmp_path, [NEW, OLD]) as port:
        async with in_the_middle(port) as url, actions.lifespan():
            assert await answers(
                url,
                ("/good", "order"),
                ("/late", "order"),
                ("/unsigned", "unsigned"),
                ("/foreign", "foreign"),
                *((path, "order") for path in CHANGES),
            ) == {
                "/good": 204,
                "/late": 401,
                "/unsigned": 401,
                "/foreign": 401,
                "/tampered": 401,
                "/stamped-again": 401,
                "/stripped": 401,
                "/twice": 401,
            }
            secrets["order"] = NEW
            assert await answers(url, ("/rotated", "order")) == {"/rotated": 204}
            secrets["order"] = FOREIGN
            assert await answers(url, ("/rotated-away", "order")) == {"/rotated-away": 401}


def test_the_file_of_cases_is_up_to_date() -> None:
    """It is what its one source makes, and has at least fifty cases, each under a name of its own."""
    assert PAGE.read_text() == render(), f"the file is out of date: {COMMAND}"
    names = [case["name"] for case in every()]
    assert len(set(names)) == len(names) >= 50


def test_the_kits_receiver_decides_the_cases_alike() -> None:
    """It has one secret, and the last header of each name: for those cases, the verdict is that of the functions."""
    fitting = [
        case
        for case in every()
        if isinstance(case["secrets"], tuple)
        and len(case["secrets"]) == 1
        and len({name.lower() for name, _ in case["headers"]}) == len(case["headers"])
    ]
    assert len(fitting) > 50
    for case in fitting:
        headers = {name.lower(): value for name, value in case["headers"]}
        verdict = verify(case["secrets"][0], headers, base64.b64decode(case["body"]), case["now"])
        assert (verdict == "verified") == case["verified"], case["name"]


def test_the_sender_signs_what_the_cases_call_signed() -> None:
    """The plugin's own signature is the one of every verified case (§5.3.2, §5.3.3)."""
    for case in every():
        headers = {name.lower(): value for name, value in case["headers"]}
        stamp = headers.get(TIMESTAMP, "")
        if case["verified"] and not stamp.startswith("00"):
            secrets = [case["secrets"]] if isinstance(case["secrets"], str) else case["secrets"]
            made = {sign(secret, int(stamp), base64.b64decode(case["body"])) for secret in secrets}
            assert headers[SIGNATURE] in made, case["name"]
