"""Checks a host object when it is given to `FlowActions.load`."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Iterable
from typing import Final

from flowactions_hookspecs.errors import HostInvalid, HostWarning
from flowactions_hookspecs.host import Host

HOST_METHODS: Final = tuple(name for name, member in vars(Host).items() if inspect.iscoroutinefunction(member))
"""The methods of the contract."""


def check_host(host: object) -> Host:
    """Return ``host`` if it fulfils the contract.

    If the contract does not know a public async method, warn with a `HostWarning` that has a suggestion.

    Raises:
        HostInvalid: it does not fulfil the contract; the message lists everything that is missing or wrong.
    """
    name = type(host).__name__
    if not isinstance(host, Host):
        missing = sorted(method for method in Host.__abstractmethods__ if not hasattr(host, method))
        lacks = f"; it also lacks {', '.join(missing)}" if missing else ""
        raise HostInvalid(f"{name} is not a host: subclass flowactions_hookspecs.Host{lacks}")
    # What a method returns is checked when it is called; here only what can never be awaited.
    wrong = [
        f"{method} must be an async method" for method in HOST_METHODS if not callable(getattr(host, method))
    ]
    if not hasattr(getattr(host, "settings", None), "items"):
        wrong.insert(0, "settings must be a mapping of setting names to text, for example os.environ")
    if wrong:
        raise HostInvalid(f"{name} is not a usable host: {'; '.join(wrong)}")
    for method in _unknown_methods(host):
        close = difflib.get_close_matches(method, HOST_METHODS, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"name it '_{method}' if it is your own"
        warnings.warn(f"{name}.{method} is no method of the contract: {advice}", HostWarning, stacklevel=2)
    return host


def _unknown_methods(host: Host) -> Iterable[str]:
    for name in dir(type(host)):
        if not name.startswith("_") and not hasattr(Host, name):
            # Looked up without running a property.
            found = inspect.getattr_static(type(host), name)
            function = getattr(found, "__func__", found)
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                yield name
