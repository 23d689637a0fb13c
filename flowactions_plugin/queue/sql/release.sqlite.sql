-- Make due the first row of each sequence of which none is due or in flight. Nobody else writes meanwhile.
UPDATE flowactions_outbox SET next_attempt_at = {now}, updated_at = {now}
WHERE rowid IN (
    SELECT (
        SELECT behind.rowid FROM flowactions_outbox AS behind
        WHERE behind.sequence = wanted.sequence AND behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
        ORDER BY behind.position LIMIT 1
    )
    FROM ({wanted}) AS wanted
    WHERE NOT EXISTS (
        SELECT 1 FROM flowactions_outbox AS live
        WHERE live.sequence = wanted.sequence AND live.status <> 'delivered' AND (
            live.status = 'retrying' OR (live.status = 'pending' AND live.next_attempt_at < 253402300799999)
            -- Cancelled, but its request may be on the way: until its claim ends.
            OR (live.status = 'dead' AND live.next_attempt_at > {now})
        )
    )
)
RETURNING lane, organization_id, destination, next_attempt_at
