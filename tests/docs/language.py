"""What can be checked of the language: ``python -m tests.docs.language [--write]`` lists what is wrong, by file.

The pages are for people whose second language is English. Long sentences, "there is", words that were given up, and turns of
phrase that need a second reading are counted. `COUNTS` holds what each file still has; a count may only go down.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs.fences import FENCE, ROOT

COUNTS: Final = Path(__file__).with_name("language.toml")

LONGEST: Final = 30
"""Words of a sentence."""

FEW: Final = 3
"""Words of a text that is no sentence."""

NO_MESSAGE: Final = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|\()")
"""Begins SQL, or a regular expression that has several lines."""

VALUE: Final = r"\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}"
"""In a template of a script."""

SCRIPT: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?<=[=(,:\[!&|?])\s*/(?:[^/\\\n\[]|\\.|\[[^\]\n]*\])+/"
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\$]|\\.|\$(?!\{)|""" + VALUE + ")*`)",
    re.DOTALL,
)
"""A comment, a pattern, a string or a template of a script."""

NO_TEXT: Final = re.compile(r"=>|\);|</|\bconst\b")
"""In what is code or markup: a pattern with a quote may end a string at the wrong place."""

TURNS: Final[Mapping[str, str]] = {
    r"\bthere (?:is|are|was|were)\b": "say who does or has it",
    r"\bas if nothing were there\b": "say that it is unchanged",
    r"\bto which (?:a|an|the) \w+ \w+ who\b": "put the condition first",
    r"\bthe other way round\b": "say the order",
    r"\b(?:is|are|was|were|be|been) gone\b": "was deleted, has ended, does not answer",
    r"\b(?:is|are|was|were|be) told\b": "say who tells whom, or 'learns'",
    r"\b(?:is|are|was|were|be) left behind\b": "say what happens to it",
    r"\bholds? (?:a|the|any) flows? up\b|\bhold up\b": "delays",
    r"\bwhat came of it\b": "the result",
    r"\bwhat (?:waits|is|was|has|goes|comes|differs|fails) [^.,;:|]{0,60}?, (?:then )?(?:ends|goes|comes|waits)\b": "subject first",
    r"\bnever (?:loses|lost)\b|\bnothing is (?:ever )?lost\b": "what is queued outlives every crash",
    r"\bgoes only where\b|\bwhere it may\b": "say which addresses are allowed",
    r"\b(?:is|are) (?:then )?yours to\b": "you then",
    r"\banew\b": "again, new",
    r"\bstands? for what\b": "marks",
    r"\bof (?:calls|processes|those|several) that race\b": "if two calls arrive together",
    r"\bwhoever\b|\bfor whom\b|\bwho(?:se)? user is\b": "name the person",
    r"\bbrought (?:from|up) \b": "upgraded",
    r"\bin vain\b|\bhas changed its mind\b|\bwithout a word\b|\bof one's own accord\b": "plain words",
    r"\bcourier|\bbell\b|\bbury\b|\bburied\b|\btakeover\b|\bspoilt\b|\bworn\b|\banybody's chat\b": "see the glossary",
    r"\b(?:unless|until|when|where|if) nobody (?:looks|knows)\b": "plain words",
    r"\bmend\b": "repair",
}
"""Turns of phrase, with what is better; the first column of the pairs and of the retired words, as far as one can look for it."""


class Finding(NamedTuple):
    """What is wrong with a sentence.

    Attributes:
        file: relative to the repository.
        rule: what is wrong, and what is better.
        sentence: as it stands, on one line.
    """

    file: str
    rule: str
    sentence: str


def texts() -> Iterator[tuple[str, str]]:
    """Give what is checked, by file: README and pages, docstrings of the contract, and what plugin and kit say while they run.

    Decisions are history, the changelog too; the behaviour pages are the specification's. Help of commands and descriptions of
    routes are on pages of the reference.
    """
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("docs/decisions/", "docs/reference/behaviour/")):
            yield name, path.read_text()
    for path in sorted((ROOT / "hookspecs" / "flowactions_hookspecs").rglob("*.py")):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [
            ast.get_docstring(node) or ""
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, documented)
        ]
        yield path.relative_to(ROOT).as_posix(), "\n\n".join(found)
    for package in (ROOT / "flowactions_plugin", ROOT / "conformance" / "flowactions_conformance"):
        for path in sorted(package.rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), "\n\n".join(messages(path.read_text()))
        for path in sorted(package.rglob("*.html")):
            yield path.relative_to(ROOT).as_posix(), shown(path.read_text())
        for path in sorted(package.rglob("*.js")):
            if "vendor" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), "\n\n".join(of_script(path.read_text()))


def messages(source: str) -> Iterator[str]:
    """Give the texts of a module that are neither docstrings nor SQL: errors, log lines, help, findings. A value is one word."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts | documentation:
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if len(text.split()) > FEW and not NO_MESSAGE.match(text):
            yield re.sub(r"(?<=\S) {2,}", "\n\n", text)  # columns


def of_script(source: str) -> Iterator[str]:
    """Give the texts of a page's script: its strings and templates, without comments. A value is one word."""
    for found in SCRIPT.finditer(source):
        text = found["text"]
        if text is None:
            continue
        for value in re.findall(VALUE, text):
            yield from of_script(value[2:-1])
        text = re.sub(VALUE, "X", text)[1:-1]
        if len(text.split()) > FEW and not NO_TEXT.search(text):
            yield text


def shown(template: str) -> str:
    """Return the text of a page's template: without its markup and statements. A value is one word."""
    text = re.sub(r"{#.*?#}|{%.*?%}", "\n\n", template, flags=re.DOTALL)
    text = re.sub(r"{{.*?}}", "X", text, flags=re.DOTALL)
    return re.sub(r"<(?!/?(?:a|b|code|em|span|strong|time)\b)[^>]*>", "\n\n", text)


def sentences(text: str) -> Iterator[str]:
    """Give the sentences of a page: of paragraphs, items of lists and cells of tables. Code is one word."""
    text = re.sub(r"<!--.*?-->|<[^>]+>", " ", FENCE.sub("\n\n", text), flags=re.DOTALL)
    text = re.sub(r"`{1,2}[^`]+`{1,2}", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |[├└│]))|\n(?=#)|(?<=\|)\n|\n(?=[ ]+\w+: )", text):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            line = " ".join(re.sub(r"^\s*(?:[-*#]+|\d+\.)\s", "", cell).split())
            yield from re.split(r"(?<=[.!?])[*\")]* +(?=[*\"(]*[A-Z§])", line)


def findings(file: str, text: str) -> Iterator[Finding]:
    """Give what is wrong with a text."""
    for sentence in sentences(text):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > LONGEST:
            yield Finding(file, f"{len(words)} words, {LONGEST} at most", sentence)
        for turn, better in TURNS.items():
            if found := re.search(turn, sentence, re.IGNORECASE):
                yield Finding(file, f"{found[0]!r}: {better}", sentence)


def counted() -> dict[str, int]:
    """Count what is wrong, by file; a file without a fault has no entry."""
    counts = {file: sum(1 for _ in findings(file, text)) for file, text in texts()}
    return {file: count for file, count in sorted(counts.items()) if count}


def allowed() -> dict[str, int]:
    """Return what files still may have."""
    return dict(tomllib.loads(COUNTS.read_text()))


def main() -> int:
    """Run the command."""
    if "--write" in sys.argv:
        before = allowed() if COUNTS.exists() else {}
        more = {file: count for file, count in counted().items() if before and count > before.get(file, 0)}
        if more:
            sys.stderr.write(f"a count may only go down: {more}\n")
            return 1
        head = "# What files still have of long sentences and turns of phrase (tests/docs/language.py). A count may only go down.\n"
        COUNTS.write_text(head + "".join(f'"{file}" = {count}\n' for file, count in counted().items()))
        return 0
    for file, text in texts():
        if not sys.argv[1:] or file in sys.argv[1:]:
            for each in findings(file, text):
                sys.stdout.write(f"{each.file}: {each.rule}\n    {each.sentence}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
