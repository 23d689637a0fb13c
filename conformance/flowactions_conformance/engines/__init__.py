"""Flow engines that people already use: for each a folder with its glue and what ``init --engine`` writes beside it.

Nothing in the kit imports these folders, which need their engine. `init` copies their files.
"""
