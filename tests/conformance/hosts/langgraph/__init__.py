"""A host whose flows LangGraph runs: `glue` is what a user of LangGraph adds, `host` is the app around it."""
