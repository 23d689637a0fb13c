"""A host whose flows DBOS runs: `glue` is what a user of DBOS adds, `host` is the app around it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "docs" / "examples" / "dbos"))
