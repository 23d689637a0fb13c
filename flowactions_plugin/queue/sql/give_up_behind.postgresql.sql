-- End the first row that waits of each sequence if it has waited too long for the one before it; not while its destination is paused.
UPDATE flowactions_outbox SET
    status = 'dead', finished_at = {now}, updated_at = {now}, next_attempt_at = {now}, error_class = 'not_sent', last_error = :reason
WHERE ctid = ANY (ARRAY(
    SELECT first.ctid FROM ({wanted}) AS wanted CROSS JOIN LATERAL (
        SELECT behind.ctid, behind.updated_at, behind.organization_id, behind.destination FROM flowactions_outbox AS behind
        WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
          AND (behind.sequence, behind.position) >= (wanted.sequence, 0)
          AND (behind.sequence, behind.position) <= (wanted.sequence, 9223372036854775807)
        ORDER BY behind.sequence, behind.position LIMIT 1
    ) AS first
    WHERE first.updated_at < {now} - :longest AND {unpaused}
))
RETURNING id, destination
