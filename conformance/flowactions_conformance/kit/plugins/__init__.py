"""A small kit for authors of plugins: a plugin's node types, over two reference hosts in one process."""
