-- Make the first row that waits due, of each sequence that nothing holds up. The sequences were locked by a statement before this one,
-- so that this one sees what others have released. A row that somebody changes just now is left to the next look.
UPDATE flowactions_outbox SET next_attempt_at = {now} + CAST(:delay AS bigint), updated_at = {now}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM flowactions_outbox
    WHERE ctid = ANY (ARRAY(
        SELECT (
            SELECT behind.ctid FROM flowactions_outbox AS behind
            WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
              AND (behind.sequence, behind.position) >= (wanted.sequence, 0)
              AND (behind.sequence, behind.position) <= (wanted.sequence, 9223372036854775807)
            ORDER BY behind.sequence, behind.position LIMIT 1
        )
        FROM ({wanted}) AS wanted
        WHERE NOT ({is_held_up})
    ))
    FOR UPDATE SKIP LOCKED
))
RETURNING lane, organization_id, destination, next_attempt_at
