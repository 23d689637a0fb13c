"""Reports show what a host has logged, except for the errors that the kit itself has provoked."""

from __future__ import annotations

from flowactions_conformance.kit.hosts.output import without_provoked

OWN = """\
Unhandled error in POST /open
Traceback (most recent call last):
  File "host.py", line 7, in open
    queue.put(run)
QueueFull: 100 runs wait"""
PROVOKED = """\
Unhandled error in POST /echo
Traceback (most recent call last):
  File "probe.py", line 9, in echo
    raise ProbeError(text)
ProbeError: the kit has asked for this

During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "host.py", line 3, in answered
    raise ServerError from error
ServerError: 500"""


def test_what_the_kit_has_provoked_is_left_out_whole() -> None:
    """The line before the error, its traceback, and the errors that it caused are left out. All other lines stay."""
    told = without_provoked(f"{OWN}\n{PROVOKED}\nstarted\n\n{OWN}".split("\n"))
    assert told == [*OWN.split("\n"), "started", *OWN.split("\n")]


def test_an_error_of_the_host_stays_whole() -> None:
    """Also as the first thing that is logged."""
    assert without_provoked(OWN.split("\n")) == OWN.split("\n")
    assert without_provoked([]) == []
