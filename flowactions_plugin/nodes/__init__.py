"""The two node types: their configs, what reaching them does, and their pacing (§1.1)."""
