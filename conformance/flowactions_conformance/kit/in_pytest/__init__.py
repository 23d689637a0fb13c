"""The checks as tests of pytest; the only modules of the kit that import it."""
