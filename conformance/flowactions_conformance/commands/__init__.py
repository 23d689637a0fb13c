"""The commands of ``python -m flowactions_conformance``."""


class Wrong(Exception):
    """The command line, or what it names, is wrong; the message says what to do."""
