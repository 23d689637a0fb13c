"""How the pages write times, numbers and text from outside."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from markupsafe import Markup, escape

from flowactions_plugin import log_text
from flowactions_plugin.clock import moment

_LAID_OUT: Final = "\n\t\u200c\u200d\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000"
"""Line breaks, tabs, the joiners of scripts and emoji, and spaces of other widths: a browser lays them out."""

_BREAKS: Final = re.compile(r"[/.]+(?=[^/.])")

NOTHING: Final = "\u2013"
"""Stands where there is no value."""

_TIME: Final = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)


def plain(value: Any) -> Any:
    r"""Return a value as a page shows it: characters that are not printable are written as escapes such as ``\u202e``.

    Templates apply it to all that they write. What a browser lays out is kept.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return log_text.escaped(value, keep=_LAID_OUT)


def utc(value: Any, kind: str = "") -> str:
    """Return a time: ``2030-01-31 12:00:00 UTC``; as a ``minute`` without seconds; as a ``clock``, ``12:00``; a dash for none."""
    text = moment(value)
    if not text:
        return NOTHING
    if kind == "clock":
        return text[11:16]
    return f"{text[:10]} {text[11:16] if kind == 'minute' else text[11:19]} UTC"


def place(url: str) -> str:
    """Return where a URL leads as lists show it: host and path, with the scheme if it is not ``https`` and the port if it is not usual."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    shown = host.removesuffix(":443" if scheme == "https" else ":80") + slash + path
    return shown if scheme == "https" else f"{scheme}://{shown}" if rest else url


def channel(url: str) -> str:
    """Return the channel or member to which the URL of a chat message leads."""
    return unquote(url.rpartition("/")[2])


def breakable(place: str) -> Markup:
    """Return a place that breaks after ``/`` and ``.`` in a narrow column, and elsewhere only if a part is too long."""
    return Markup(_BREAKS.sub(r"\g<0><wbr>", str(escape(plain(place)))))  # noqa: S704  escaped


def timed(text: str) -> Markup:
    """Return a sentence in which each time, as findings write it, is an element that the script localizes."""

    def element(found: re.Match[str]) -> str:
        return f'<time datetime="{found[0]}">{utc(found[0])}</time>'

    return Markup(_TIME.sub(element, str(escape(plain(text)))))  # noqa: S704  escaped


def span(milliseconds: Any) -> str:
    """Return a duration in its two largest units; a dash for none."""
    return log_text.span(milliseconds) if isinstance(milliseconds, int | float) else NOTHING


def number(value: Any) -> str:
    """Return a whole number with commas; a dash for none."""
    return f"{value:,}" if type(value) is int else NOTHING


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent; a dash of nothing."""
    if whole <= 0:
        return NOTHING
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"
