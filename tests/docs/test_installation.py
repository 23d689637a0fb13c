"""How pages say that the package is installed, which is published nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.checking import typed
from tests.docs.environments import INSTALL, copy, place, run, shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import pip_lines

KIT = ROOT / "docs" / "how-to" / "prove-your-host.md"


@pytest.mark.ci
def test_the_kit_is_installed_and_run_as_its_guide_prints(tmp_path: Path, store: Path) -> None:
    """With the real pip, in an empty folder; the small host that `init` writes passes."""
    (first, *_) = blocks_of(KIT)
    make, install, init, command = first.text.splitlines()
    assert (make, install) == ("python3 -m venv .venv", INSTALL)
    folder = place(tmp_path)
    (folder / ".venv").symlink_to(shared([INSTALL], store))
    assert "PROVED" in [run(line, folder, variables()) for line in (init, command)][-1]


@pytest.mark.ci
def test_the_fastapi_host_of_the_guide_runs_as_pasted(tmp_path: Path, store: Path) -> None:
    """Its blocks, up to FastAPI's, need no package but those that the page installs; a route of the plugin's answers."""
    blocks = blocks_of(ROOT / "docs" / "how-to" / "add-to-your-host.md")
    python = [block.text for block in blocks if block.language == "python"]
    last = next(at for at, text in enumerate(python) if "SessionMiddleware" in text)
    pasted = python[: last + 1]
    folder = place(tmp_path)
    (folder / ".venv").symlink_to(shared(pip_lines(blocks), store))
    ask = "with TestClient(api) as client:\n    print(client.get('/v1/webhooks/outbox').status_code)\n"
    (folder / "app.py").write_text("\n".join([*pasted, "from starlette.testclient import TestClient", ask]))
    assert run(".venv/bin/python app.py 2>log", folder, variables()) == "401\n"


@pytest.mark.ci
def test_the_plugin_of_the_guide_is_installed_and_checked_as_its_page_prints(
    tmp_path: Path, store: Path
) -> None:
    """The module and its project as they are shown, and the commands in their order; each node type passes."""
    blocks = blocks_of(ROOT / "docs" / "how-to" / "write-a-node-type.md")
    module, project, commands = (
        next(block for block in blocks if block.language == each) for each in ("python", "toml", "sh")
    )
    folder = place(tmp_path)
    (folder / "flowactions_crm.py").write_text(module.text)
    (folder / "pyproject.toml").write_text(project.text)
    make, install, *rest = typed(commands)
    assert (make, install) == ("python3 -m venv .venv", INSTALL)
    copy(shared([INSTALL], store), folder)
    assert "The plugin crm keeps the contract" in [run(line, folder, variables()) for line in rest][-1]


@pytest.mark.ci
def test_the_wheel_of_the_image_is_built_and_installed_as_its_guide_prints(tmp_path: Path, store: Path) -> None:
    """pip takes the guide's line, and its requirements as they are; what they need in turn is tried elsewhere."""
    page = ROOT / "docs" / "how-to" / "production.md"
    build = next(block.text for block in blocks_of(page) if "pip wheel" in block.text)
    requirements = next(block.text for block in blocks_of(page) if ".whl[" in block.text)
    folder = place(tmp_path)
    (folder / ".venv").symlink_to(shared([INSTALL], store))
    (folder / "requirements.txt").write_text(requirements)
    try_it = ".venv/bin/pip install --quiet --dry-run --no-deps --ignore-installed --report report.json -r requirements.txt"
    for line in (build, try_it):
        run(line, folder, variables())
    assert '"name": "flowactions-plugin"' in (folder / "report.json").read_text()
