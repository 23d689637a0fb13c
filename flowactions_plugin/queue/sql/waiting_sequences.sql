-- Find the next sequences of which rows wait for the one before them, in the order of their numbers, and which of them nothing holds up.
-- Each takes one step in the index of the rows that wait, however many of them it has.
WITH RECURSIVE waiting(sequence, number) AS (
    SELECT (
        SELECT sequence FROM flowactions_outbox
        WHERE next_attempt_at = 253402300799999 AND status = 'pending' AND sequence > :after
        ORDER BY sequence LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT behind.sequence FROM flowactions_outbox AS behind
        WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending' AND behind.sequence > waiting.sequence
        ORDER BY behind.sequence LIMIT 1
    ), number + 1
    FROM waiting WHERE waiting.sequence IS NOT NULL AND number < :most
)
SELECT sequence, NOT EXISTS (
    SELECT 1 FROM flowactions_outbox AS live
    WHERE live.sequence = waiting.sequence AND live.status <> 'delivered' AND (
        live.status = 'retrying' OR (live.status = 'pending' AND live.next_attempt_at < 253402300799999)
        OR (live.status = 'dead' AND live.next_attempt_at > {now})
    )
) AS is_free
FROM waiting WHERE sequence IS NOT NULL
