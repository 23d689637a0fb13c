"""A host whose flows SpiffWorkflow runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "docs" / "examples" / "spiffworkflow"))
