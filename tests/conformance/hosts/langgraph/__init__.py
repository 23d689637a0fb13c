"""A host whose flows LangGraph runs: `glue` is what a user of LangGraph adds, `host` is the app around it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "docs" / "examples" / "langgraph"))
