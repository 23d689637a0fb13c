"""The database: tables, transactions, retention, and the sealing of secrets at rest."""
