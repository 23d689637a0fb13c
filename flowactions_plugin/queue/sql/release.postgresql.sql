-- Make due the first row of each sequence of which none is due or in flight. The sequences are locked, by a statement before this one,
-- so that this one sees what others have released.
WITH first AS (
    SELECT (
        SELECT behind.id FROM flowactions_outbox AS behind
        WHERE behind.sequence = wanted.sequence AND behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
        ORDER BY behind.position LIMIT 1
    ) AS id
    FROM ({wanted}) AS wanted
    WHERE NOT EXISTS (
        SELECT 1 FROM flowactions_outbox AS live
        WHERE live.sequence = wanted.sequence AND live.status <> 'delivered' AND (
            live.status = 'retrying' OR (live.status = 'pending' AND live.next_attempt_at < 253402300799999)
            -- Cancelled, but its request may be on the way: until its claim ends.
            OR (live.status = 'dead' AND live.next_attempt_at > {now})
        )
    )
),
-- A row that somebody changes just now is left to the next look, and so are those behind it.
locked AS (
    SELECT id FROM flowactions_outbox
    WHERE id = ANY (ARRAY(SELECT id FROM first WHERE id IS NOT NULL))
      AND next_attempt_at = 253402300799999 AND status = 'pending'
    FOR UPDATE SKIP LOCKED
)
UPDATE flowactions_outbox SET next_attempt_at = {now}, updated_at = {now}
WHERE id = ANY (ARRAY(SELECT id FROM locked))
RETURNING lane, organization_id, destination, next_attempt_at
