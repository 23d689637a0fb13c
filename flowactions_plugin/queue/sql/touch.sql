-- Write to the queue without changing anything, to see whether it can be written.
UPDATE flowactions_outbox SET updated_at = updated_at WHERE 1 = 0
