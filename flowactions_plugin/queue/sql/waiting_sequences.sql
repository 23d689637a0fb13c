-- Find the next sequences of which rows wait, in the order of their numbers, and which of them something holds up. Each takes one step in
-- the index of the rows that wait, however many of them it has.
WITH RECURSIVE wanted(sequence, number) AS (
    SELECT (
        SELECT behind.sequence FROM flowactions_outbox AS behind{by_behind}
        WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
          AND (behind.sequence, behind.position) > (:after, 9223372036854775807)
        ORDER BY behind.sequence, behind.position LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT behind.sequence FROM flowactions_outbox AS behind{by_behind}
        WHERE behind.next_attempt_at = 253402300799999 AND behind.status = 'pending'
          AND (behind.sequence, behind.position) > (wanted.sequence, 9223372036854775807)
        ORDER BY behind.sequence, behind.position LIMIT 1
    ), number + 1
    FROM wanted WHERE wanted.sequence IS NOT NULL AND number < :most
)
SELECT sequence, {is_held_up} AS is_held_up FROM wanted WHERE sequence IS NOT NULL
