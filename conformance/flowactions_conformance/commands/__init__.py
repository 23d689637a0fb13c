"""The commands of ``python -m flowactions_conformance``."""
