"""A host whose flows DBOS runs: `glue` is what a user of DBOS adds, `host` is the app around it."""
