-- End the first row that waits of each sequence if it has waited too long for the one before it; not while its destination is paused.
UPDATE flowactions_outbox SET
    status = 'dead', finished_at = {now}, updated_at = {now}, next_attempt_at = {now}, error_class = 'not_sent', last_error = :reason
WHERE rowid IN (
    SELECT first.rowid FROM flowactions_outbox AS first
    WHERE first.rowid IN (
        SELECT (
            SELECT behind.rowid FROM flowactions_outbox AS behind INDEXED BY ix_flowactions_outbox_behind
            WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending' AND behind.sequence = wanted.sequence
            ORDER BY behind.position LIMIT 1
        )
        FROM ({wanted}) AS wanted
    ) AND first.updated_at < {now} - :longest AND {unpaused}
)
RETURNING id, destination
