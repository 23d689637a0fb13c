"""The database: tables, transactions, and the sealing of secrets at rest."""
