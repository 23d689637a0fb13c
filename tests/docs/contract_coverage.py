"""Which check of the conformance kit tests which sentence of the contract, for the sentences that bind a host.

`contract_coverage.toml` says it, sentence by sentence, and ``python -m tests.docs.contract_coverage --write`` makes
the page of it. Without ``--write``, what is missing is listed, in the form in which the file takes it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from flowactions_conformance.kit.clauses import FILE
from flowactions_conformance.kit.registry import all_checks

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "reference" / "contract.md"
PAGE = ROOT / "docs" / "reference" / "contract-coverage.md"
DATA = Path(__file__).with_name("contract_coverage.toml")
COMMAND = "python -m tests.docs.contract_coverage --write"

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
END = re.compile(r"(?<=[.?!])\s+(?=[A-Z`*(\[])")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
WORDS = 7

Entry: TypeAlias = list[str] | str | Mapping[str, Any]
"""What the file says of a sentence.

- the ids of the checks that test it, or ``{checks = […], except = …}`` where they do not test all of it;
- or why no check can test it, although it binds hosts;
- or ``{binds = …}``: whom it binds instead of hosts.
"""


class Sentence(NamedTuple):
    """A sentence, an item or a row of a table of the contract page, with the section that it stands in."""

    section: str
    text: str


def sentences(page: str) -> list[Sentence]:
    """Splits a page into sentences; examples and the heads of tables are left out."""
    found = []
    section = ""
    for block in re.split(r"\n\s*\n", FENCE.sub("", page)):
        for unit in _units(block.strip()):
            if unit.startswith("#"):
                section = unit.lstrip("#").strip()
            else:
                found += [Sentence(section, each) for each in END.split(unit) if each]
    return found


def _units(block: str) -> Iterator[str]:
    """Gives the headings, rows, items and paragraphs of a block, each on one line and without links."""
    lines = block.split("\n")
    if lines[0].startswith("|"):
        yield from (_plain(" | ".join(_cells(line))) for line in lines[2:])
        return
    unit: list[str] = []
    for line in lines:
        if re.match(r"#+ |- |\d+\. ", line) and unit:
            yield _plain(" ".join(unit))
            unit = []
        unit.append(re.sub(r"^- ", "", line))
    yield _plain(" ".join(unit))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def _plain(text: str) -> str:
    return " ".join(LINK.sub(r"\1", text).split())


def data() -> Mapping[str, Mapping[str, Entry] | Entry]:
    """Reads the file: section → first words of a sentence → entry; or section → entry, for all of its sentences."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


class Coverage(NamedTuple):
    """What the file says of the page.

    Attributes:
        entries: each sentence with its entry.
        missing: sentences that the file does not name.
        faults: what is wrong in the file, in words.
    """

    entries: list[tuple[Sentence, Entry]]
    missing: list[Sentence]
    faults: list[str]


def coverage(page: str, file: Mapping[str, Mapping[str, Entry] | Entry], ids: frozenset[str]) -> Coverage:
    """Compares the file with the page and with the checks that exist."""
    every = sentences(page)
    lost = set(file) - {sentence.section for sentence in every}
    faults = [f"the page has no section {name!r}" for name in sorted(lost)]
    entries: list[tuple[Sentence, Entry]] = []
    missing: list[Sentence] = []
    for section in dict.fromkeys(sentence.section for sentence in every):
        own = [sentence for sentence in every if sentence.section == section]
        of_section: Any = file.get(section, {})
        if _is_entry(of_section):
            entries += [(sentence, of_section) for sentence in own]
            continue
        for key in of_section:
            fitting = [sentence for sentence in own if sentence.text.startswith(key)]
            if not fitting:
                faults.append(f"no sentence of {section!r} begins with {key!r}")
            elif len(fitting) > 1:
                faults.append(f"{key!r} fits more than one sentence of {section!r}: name more words")
        for sentence in own:
            keys = [key for key in of_section if sentence.text.startswith(key)]
            if len(keys) > 1:
                faults.append(f"several entries fit {sentence.text!r}: {keys}")
            entries += [(sentence, of_section[key]) for key in keys[:1]]
            missing += [] if keys else [sentence]
    faults += [fault for sentence, entry in entries for fault in _faults(sentence, entry, ids)]
    return Coverage(entries, missing, faults)


def _faults(sentence: Sentence, entry: Entry, ids: frozenset[str]) -> Iterator[str]:
    unknown = sorted(set(checks_of(entry)) - ids)
    if unknown:
        yield f"there is no check {', '.join(unknown)}, named for {sentence.text!r}"
    if not _is_whole(entry):
        yield f"neither checks nor a reason for {sentence.text!r}"


def checks_of(entry: Entry) -> list[str]:
    """Returns the ids of the checks that an entry names."""
    if isinstance(entry, str):
        return []
    found: list[str] = entry.get("checks", []) if isinstance(entry, Mapping) else entry
    return found


def _is_whole(entry: Entry) -> bool:
    if isinstance(entry, Mapping):
        return set(entry) in ({"binds"}, {"checks", "except"}) and all(entry.values())
    return bool(entry)


def _is_entry(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, Mapping) and set(value) == {"binds"})


def now() -> Coverage:
    """Compares the file with the page as they are."""
    ids = frozenset(check.id for check in all_checks())
    return coverage(CONTRACT.read_text(encoding="utf-8"), data(), ids)


def render(found: Coverage) -> str:
    """Gives the text of the page."""
    lines = [
        "# How the contract is tested",
        "",
        "Each sentence of the [contract](contract.md) that binds a host, and the checks of the conformance kit that test",
        "it; where no check can, why. Sentences that bind the plugin, or authors of plugins, are not listed: the project's",
        f"own tests test those. This page is generated: `{COMMAND}`.",
    ]
    section = None
    for sentence, entry in found.entries:
        if isinstance(entry, Mapping) and "binds" in entry:
            continue
        if sentence.section != section:
            section = sentence.section
            lines += ["", f"## {section}", "", "| sentence | checks |", "|---|---|"]
        shown = ", ".join(checks_of(entry)) or f"none: {entry}"
        if isinstance(entry, Mapping):
            shown += f"; not {entry['except']}"
        lines.append(f"| {_said(sentence)} | {shown} |")
    return "\n".join(lines) + "\n"


def clauses(found: Coverage) -> bytes:
    """Gives the kit's file: each check with the sentences that it tests, as its reports show them."""
    named: dict[str, list[dict[str, str]]] = {}
    for sentence, entry in found.entries:
        for id_ in checks_of(entry):
            shown = {"section": sentence.section, "text": _said(sentence).replace("**", "")}
            named.setdefault(id_, []).append(shown)
    return msgspec.json.format(msgspec.json.encode(dict(sorted(named.items()))), indent=1) + b"\n"


def _said(sentence: Sentence) -> str:
    return sentence.text.replace(" | ", ": ", 1).replace(" | ", "; ")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.contract_coverage", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page anew")
    arguments = parser.parse_args()
    found = now()
    section = None
    for sentence in found.missing:
        if sentence.section != section:
            section = sentence.section
            sys.stdout.write(f'\n["{section}"]\n')
        words = " ".join(sentence.text.split()[:WORDS]).replace("\\", "\\\\").replace('"', '\\"')
        sys.stdout.write(f'"{words}" = []\n')
    for fault in found.faults:
        sys.stdout.write(f"{fault}\n")
    if arguments.write:
        PAGE.write_text(render(found), encoding="utf-8")
        FILE.write_bytes(clauses(found))
    return 1 if found.missing or found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
