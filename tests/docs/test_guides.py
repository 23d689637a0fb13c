"""What guides say of commands, settings and rules, tried with the commands themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commanding import command
from tests.docs.fences import ROOT, blocks_of
from tests.proxying import squid
from tests.recorder import recorder

GUIDES = ROOT / "docs" / "how-to"


def exported(page: str, setting: str) -> str:
    """Give the value that a page exports."""
    for block in blocks_of(GUIDES / page):
        for line in block.text.splitlines():
            if line.startswith(f"export {setting}="):
                return line.partition("=")[2].strip("'\"")
    raise AssertionError(f"{page} does not export {setting}")


async def test_a_private_network_is_let_through_by_the_setting_of_its_guide(tmp_path: Path) -> None:
    """Without it, doctor says that the address is refused; a wide network leaves metadata addresses closed."""
    database = f"sqlite:///{tmp_path / 'f.db'}"
    await command("migrate", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database)
    urls = ("--url", "https://10.20.1.1/hook", "--url", "http://100.100.100.200/")
    closed = await command("doctor", *urls, "--json", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database)
    allowed = exported("networks.md", "FLOWACTIONS_EGRESS_ALLOW")
    settings = {"FLOWACTIONS_DATABASE_URL": database, "FLOWACTIONS_EGRESS_ALLOW": f"{allowed},100.64.0.0/10"}
    opened = await command("doctor", *urls, "--json", cwd=tmp_path, **settings)
    verdicts = [
        [check["result"] for check in document["checks"] if check["name"] == "egress"]
        for document in (closed.document, opened.document)
    ]
    assert verdicts == [["failed", "failed"], ["ok", "failed"]]


async def test_a_test_of_the_proxys_guide_is_refused_here(tmp_path: Path) -> None:
    """A literal address that no webhook may go to is refused before any proxy is asked, whoever resolves."""
    proxy = exported("networks.md", "FLOWACTIONS_EGRESS_PROXY")
    for resolve in ("local", "proxy"):
        settings = {"FLOWACTIONS_EGRESS_PROXY": proxy, "FLOWACTIONS_EGRESS_RESOLVE": resolve}
        sent = await command("send-test", "http://127.0.0.1:8080/", cwd=tmp_path, **settings)
        assert sent.code == 1
        assert "not delivered" in sent.out
        assert "proxy did not connect" not in sent.out
        assert "password" not in sent.out + sent.err


@pytest.mark.ci
async def test_a_proxy_with_one_known_address_refuses_inner_ones(tmp_path: Path) -> None:
    """By the lines of the guide, and whoever resolves; without the line that denies them it would connect."""
    (squids,) = [block for block in blocks_of(GUIDES / "networks.md") if "http_access" in block.text]
    lines = squids.text.replace("10.20.0.0/16", "127.0.0.1").splitlines()[1:]
    denies = "http_access deny inner"
    assert denies in lines
    for kept, is_refused in ((lines, True), ([each for each in lines if each != denies], False)):
        async with recorder() as receiver, squid("inner.example", access="\n".join(kept)) as proxy:
            settings = {"FLOWACTIONS_EGRESS_PROXY": proxy, "FLOWACTIONS_EGRESS_RESOLVE": "proxy"}
            settings["FLOWACTIONS_EGRESS_PROXY_TUNNEL"] = "all"
            url = receiver.url.replace("127.0.0.1", "inner.example")
            told = (await command("send-test", url, cwd=tmp_path, **settings)).out
        assert {"not delivered" in told, "(403)" in told} == {is_refused}
