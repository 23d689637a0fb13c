"""What hosts print and log, kept within bounds."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

OUTPUT_LINES: Final = 200
OUTPUT_LINE_CHARACTERS: Final = 2_000


class Output:
    """The newest lines of what a host prints and logs; everything else is dropped, however much it is."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._partial = ""
        self._listeners: list[Callable[[Sequence[str]], None]] = []

    def write(self, text: str) -> int:
        """Keep the newest lines of a text."""
        size = OUTPUT_LINES * OUTPUT_LINE_CHARACTERS
        lines = (self._partial + text[-size:]).split("\n")
        self._partial = lines.pop()[-OUTPUT_LINE_CHARACTERS:]
        kept = [line[:OUTPUT_LINE_CHARACTERS] for line in lines]
        self.lines.extend(kept)
        for listener in tuple(self._listeners):
            listener(kept)
        return len(text)

    def listen(self, listener: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call something with all lines to come; return what ends that. It is called in the threads that print."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def flush(self) -> None:
        """Do nothing: for code that takes this for a file."""

    def text(self) -> str:
        """Return what was kept."""
        return "\n".join([*self.lines, *([self._partial] if self._partial else [])])


def encodable(value: Any) -> Any:
    """Return JSON values whose text can be encoded: what a host says may hold half of a character."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    return [encodable(each) for each in value] if isinstance(value, list | tuple) else value


class LogLines(logging.Handler):
    """Puts log records of warning level and above into an `Output`."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._output.write(f"{self.format(record)}\n")
