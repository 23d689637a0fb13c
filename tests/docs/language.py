"""What can be checked of the language.

The pages are for people whose second language is English. So they have no long sentences, no "there is", no retired words, and
no turns of phrase that need a second reading.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.docs.fences import FENCE, ROOT

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
    r"\bis (?:due|limited|paused) since\b|\bwithout an attempt since\b": "has been … since",
    r"\bended without success at\b": "it failed at",
    r"\bleave it</a>|\bfirst so many\b|\bthere was none\b": "cancel; send this many first; no … yet",
    r"\bwhere it leaves delivering\b|\bgive the database room\b|\bmust have got\b": "see the pairs",
    r"\bthere (?:is|are|was|were)\b": "say who does or has it",
    r"\bas if nothing were there\b": "say that it is unchanged",
    r"\bto which (?:a|an|the) \w+ \w+ who\b": "put the condition first",
    r"\bthe other way round\b": "say the order",
    r"\b(?:is|are|was|were|be|been) gone\b": "was deleted, has ended, does not answer",
    r"\b(?:is|are|was|were|be) told\b": "say who tells whom, or 'learns'",
    r"\b(?:is|are|was|were|be) left behind\b": "say what happens to it",
    r"\bholds? (?:a|the|any) flows? up\b|\bhold up\b": "delays",
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
    r"\bmend(?:s|ed|ing)?\b": "repair",
    r"\ball the same\b": "still",
    r"\b(?:comes|came) of (?:it|them)\b": "the result",
    r"\bwhatever\b|\bhowever (?:many|few|often|long|old|late)\b": "with any, even if",
    r"\bas (?:it|they) stands?\b": "unchanged, in its present state",
    r"\b(?:stands?|stood) (?:twice|in (?:double )?quotes|before a)\b|\b(?:must|can only|cannot) stand\b": "is, has, put",
    r"\b(?:takes?|took|taken) (?:it|them|this|that) back\b": "undo, roll back",
    r"\b(?:is|are|was|were) said\b|\bunless said\b": "say who says it",
    r"\b(?:tells?|told) (?:\w+ )?apart\b": "distinguish",
    r"\bdial(?:s|led)?\b|\bin hand\b|\bdearer\b|\bcarr(?:y|ies|ied) (?:it |them )?out\b": "connect, has, costs more, execute",
    r"\bthat races?\b|\bracing c\w+\b": "if two calls arrive together",
    r", for (?:it|they|you|nobody|nothing|what) (?:is|are|was|were|has|have|may|can|cannot|takes?|adds?)\b": "because",
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

    The changelog is history. Help of commands and descriptions of routes are on pages of the reference.
    """
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]:
        yield path.relative_to(ROOT).as_posix(), path.read_text()
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
