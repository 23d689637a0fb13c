"""``python -m flowactions_plugin.cli``."""

from __future__ import annotations

import sys

from flowactions_plugin.cli import main

if __name__ == "__main__":
    sys.exit(main())
