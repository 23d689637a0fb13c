-- End the first waiting row of each sequence if it has waited too long for the one before it; not while its destination is paused.
UPDATE flowactions_outbox SET
    status = 'dead', finished_at = {now}, updated_at = {now}, next_attempt_at = {now},
    error_class = 'not_sent', last_error = 'it has waited too long for the delivery before it'
WHERE next_attempt_at = 253402300799999 AND status = 'pending' AND updated_at < {now} - :longest AND id IN (
    SELECT (
        SELECT behind.id FROM flowactions_outbox AS behind
        WHERE behind.sequence = wanted.sequence AND behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
        ORDER BY behind.position LIMIT 1
    )
    FROM ({wanted}) AS wanted
) AND NOT EXISTS (
    SELECT 1 FROM flowactions_pauses AS pause
    WHERE pause.destination = flowactions_outbox.destination
      AND pause.organization_id IN ('', flowactions_outbox.organization_id)
)
RETURNING id, destination
