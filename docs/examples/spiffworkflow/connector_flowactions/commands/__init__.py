"""The commands: the proxy finds each class in these modules, and shows the parameters of its ``__init__`` in the editor."""
