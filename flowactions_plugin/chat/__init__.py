"""The chat connection of an organization, and the provider behind it (§2.2, §4.1)."""
