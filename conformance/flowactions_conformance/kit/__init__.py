"""The conformance kit: checks that prove that a host gives the plugin what it needs.

`under_test` is what a host author writes against, `registry` holds the checks, `runner` runs them, `report` shows
their results.
"""
