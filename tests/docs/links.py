"""The relative links of pages, and where they lead."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
BUILT = {"node_modules", "build", "dist"}

FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*([^)\s]+)[^)]*\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
TAG = re.compile(r"<[^>]*>")
ID = re.compile(r'<a (?:id|name)="([^"]+)">')


def documents() -> list[Path]:
    """Find the repository's own markdown files."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") or part in BUILT for part in path.relative_to(ROOT).parts)
    )


def slug(heading: str) -> str:
    """Name a heading as the repository's host does: small letters, digits, hyphens for spaces."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", TAG.sub("", heading)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Find what a link into a page can lead to: its headings, and the ids that it sets."""
    text = FENCE.sub("", page.read_text())
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        name = slug(heading)
        same = sum(1 for each in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", each))
        found.append(f"{name}-{same}" if same else name)
    return frozenset([*found, *ID.findall(CODE.sub("", text))])


def broken(page: Path, text: str) -> list[str]:
    """List the relative links of a page's text that lead nowhere."""
    prose = CODE.sub("", FENCE.sub("", text))
    lost = []
    for link in (first or second for first, second in LINK.findall(prose)):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if path.startswith("/") or not target.is_relative_to(ROOT) or not target.exists():
            lost.append(f"{link}: there is no such file in the repository")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            lost.append(f"{link}: {target.relative_to(ROOT)} has no such heading or anchor")
    return lost
