"""Runs hosts: within this process, in child processes, and their databases and output."""
