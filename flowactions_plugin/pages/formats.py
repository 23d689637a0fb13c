"""How the pages write times, numbers and text from outside."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

from flowactions_plugin.log_text import escaped

_LAID_OUT: Final = "\n\t\u200c\u200d\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000"
"""Line breaks, tabs, the joiners of scripts and emoji, and spaces of other widths: a browser lays them out."""

NOTHING: Final = "\u2013"
"""Stands where there is no value."""

_TIME: Final = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def plain(value: Any) -> Any:
    r"""Return a value as a page shows it: characters that are not printable are written as escapes such as ``\u202e``.

    Templates apply it to all that they write. What a browser lays out is kept.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return escaped(value, keep=_LAID_OUT)


def iso(milliseconds: Any) -> str | None:
    """Return a time as ISO 8601 in UTC with seconds; ``None`` for what is none."""
    if isinstance(milliseconds, str):
        return milliseconds[:19] + "Z"
    if type(milliseconds) is not int:
        return None
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return None


def utc(milliseconds: Any) -> str:
    """Return a time as it is read: ``2030-01-31 12:00:00 UTC``; a dash for none."""
    text = iso(milliseconds)
    return NOTHING if text is None else f"{text[:10]} {text[11:19]} UTC"


def utc_clock(milliseconds: Any, kind: str) -> str:
    """Return a time to the minute: as a ``clock``, ``12:00``; as a ``minute``, ``2030-01-31 12:00 UTC``; a dash for none."""
    text = iso(milliseconds)
    if text is None:
        return NOTHING
    return text[11:16] if kind == "clock" else f"{text[:10]} {text[11:16]} UTC"


def place(url: str) -> str:
    """Return where a URL leads as lists show it: host and path, with the scheme if it is not ``https`` and the port if it is not usual."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    shown = host.removesuffix(":443" if scheme == "https" else ":80") + slash + path
    return shown if scheme == "https" else f"{scheme}://{shown}" if rest else url


def timed(text: str) -> Markup:
    """Return a sentence in which each time, as `insights.explain` writes it, is an element that the script localizes."""
    return Markup(_TIME.sub(lambda found: _element(found[0]), str(escape(plain(text)))))  # noqa: S704  escaped


def _element(moment: str) -> str:
    return f'<time datetime="{moment}">{utc(moment)}</time>'


def span(milliseconds: Any) -> str:
    """Return a duration in its two largest units, ``2 h 5 min``; below a second in milliseconds; a dash for none."""
    if not isinstance(milliseconds, int | float):
        return NOTHING
    rest = max(0, int(milliseconds))
    if rest < 1000:
        return f"{rest} ms"
    if rest < 10_000:
        return f"{rest / 1000:.1f} s"
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def number(value: Any) -> str:
    """Return a whole number with commas; a dash for none."""
    return f"{value:,}" if type(value) is int else NOTHING


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent; a dash of nothing."""
    if whole <= 0:
        return NOTHING
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"
