"""What operators see and do: searches, counts, health, statistics, bulk actions, pages."""
