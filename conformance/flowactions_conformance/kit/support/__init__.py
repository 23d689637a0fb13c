"""What several checks share: clients, comparisons, evidence."""
