-- Make the first row that waits due, of each sequence that nothing holds up. Nobody else writes meanwhile.
UPDATE flowactions_outbox SET next_attempt_at = {now} + CAST(:delay AS bigint), updated_at = {now}
WHERE rowid IN (
    SELECT (
        SELECT behind.rowid FROM flowactions_outbox AS behind INDEXED BY ix_flowactions_outbox_behind
        WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending' AND behind.sequence = wanted.sequence
        ORDER BY behind.position LIMIT 1
    )
    FROM ({wanted}) AS wanted
    WHERE NOT ({is_held_up})
)
RETURNING lane, organization_id, destination, next_attempt_at
