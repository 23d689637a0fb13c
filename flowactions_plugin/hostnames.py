"""International host names, as they are looked up: in A-labels (``xn--…``)."""

from __future__ import annotations

import idna


def to_a_labels(host: str) -> str:
    """Map a host name by UTS #46 (not transitional) and give it in ASCII.

    What the mapping makes of full-width digits and dots, a circled letter or a soft hyphen is given as it is: the
    caller judges the result as it judges any host, for it may be an IPv4 address or hold a slash by then.

    Raises:
        ValueError: there is no such name; the message does not hold it.
    """
    if host.isascii():
        return host
    try:
        mapped = idna.uts46_remap(host, std3_rules=False, transitional=False)
        if mapped.isascii():
            return mapped
        return idna.encode(mapped, uts46=True, transitional=False).decode("ascii")
    except (UnicodeError, IndexError):  # the library raises both
        pass
    raise ValueError("not a name that IDNA allows")
