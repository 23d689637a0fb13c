"""International host names as A-labels (``xn--…``), the form in which they are resolved."""

from __future__ import annotations

import idna


def to_a_labels(host: str) -> str:
    """Return a host name in ASCII, mapped by UTS #46 (not transitional).

    The mapping may turn full-width digits and dots into an IPv4 address, or another character into a slash. The caller
    validates the result like any host.

    Raises:
        ValueError: IDNA does not allow the name; the message does not hold it.
    """
    if host.isascii():
        return host
    try:
        mapped = idna.uts46_remap(host, std3_rules=False, transitional=False)
        if mapped.isascii():
            return mapped
        return idna.encode(mapped, uts46=True, transitional=False).decode("ascii")
    except (UnicodeError, IndexError):  # raised by the library
        pass
    raise ValueError("not a name that IDNA allows")
