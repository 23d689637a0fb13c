"""The table of the codes of a chat provider: ``python -m tests.docs.chat_codes`` prints it. The site has it below its page of errors."""

from __future__ import annotations

import sys

from flowactions_plugin.chat.failures import ADVICE, FOR_OPERATORS, TRANSIENT


def render() -> str:
    """Make the table."""
    lines = ["| code | again? | advice | for operators |", "|---|---|---|---|"]
    for code in sorted(ADVICE):
        again = "yes" if code in TRANSIENT else "no"
        lines.append(f"| `{code}` | {again} | {ADVICE[code]} | {FOR_OPERATORS.get(code, '')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
