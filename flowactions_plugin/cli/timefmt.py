"""Times and durations as commands print them."""

from __future__ import annotations

from flowactions_plugin.clock import to_iso


def moment(milliseconds: int | None) -> str:
    """Return a time (Unix milliseconds) as ISO 8601 in UTC, with seconds; empty for none or what is not a time."""
    if milliseconds is None:
        return ""
    try:
        return short(to_iso(milliseconds))
    except (ValueError, OverflowError, OSError):
        return "?"


def short(iso: str | None) -> str:
    """Return an ISO 8601 time without milliseconds."""
    return "" if iso is None else iso.partition(".")[0] + ("Z" if "." in iso else "")


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``3 min 20 s``."""
    whole = max(0, round(seconds))
    parts: list[str] = []
    for name, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if whole >= size or (name == "s" and not parts):
            parts.append(f"{whole // size} {name}")
            whole %= size
        elif parts:
            break
    return " ".join(parts[:2])
