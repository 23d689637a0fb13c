"""The chat connection of an organization, and the provider behind it."""
