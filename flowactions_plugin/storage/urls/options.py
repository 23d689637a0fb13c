"""Messages about options of database URLs."""

from __future__ import annotations

import re


def unsupported(name: str) -> str:
    """Return the message about an option that is not supported."""
    # Another name may be a part of a password that was not percent-encoded.
    shown = f"the option {name}" if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) else "one of its options"
    return f"must not have {shown}, which is not supported"
