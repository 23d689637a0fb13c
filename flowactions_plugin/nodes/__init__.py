"""The two node types: configs, what reaching a node does, pacing, and what an editor asks of a draft."""
