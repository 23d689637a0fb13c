"""A folder for each flow engine that has glue. ``init --engine`` copies its files.

No module of the kit imports them, because they need the engine.
"""
