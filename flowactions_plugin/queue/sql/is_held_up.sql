-- Whether a row of the sequence ``wanted`` is due, in flight, or waits for its next attempt. One that was cancelled counts until its claim
-- ends, since its request may be on the way. PostgreSQL would join an EXISTS, and read all rows; without
-- the order, it would read them where it was never analyzed.
(
    SELECT 1 FROM flowactions_outbox AS live{by_sequence}
    WHERE live.sequence IS NOT NULL AND live.status <> 'delivered'
      AND (live.sequence, live.status, live.next_attempt_at) >= (wanted.sequence, 'pending', 0)
      AND (live.sequence, live.status, live.next_attempt_at) < (wanted.sequence, 'pending', 253402300799999)
    ORDER BY live.sequence, live.status, live.next_attempt_at LIMIT 1
) IS NOT NULL OR (
    SELECT 1 FROM flowactions_outbox AS live{by_sequence}
    WHERE live.sequence IS NOT NULL AND live.status <> 'delivered'
      AND (live.sequence, live.status, live.next_attempt_at) >= (wanted.sequence, 'retrying', 0)
      AND (live.sequence, live.status, live.next_attempt_at) <= (wanted.sequence, 'retrying', 253402300799999)
    ORDER BY live.sequence, live.status, live.next_attempt_at LIMIT 1
) IS NOT NULL OR (
    SELECT 1 FROM flowactions_outbox AS live{by_sequence}
    WHERE live.sequence IS NOT NULL AND live.status <> 'delivered'
      AND (live.sequence, live.status, live.next_attempt_at) > (wanted.sequence, 'dead', {now})
      AND (live.sequence, live.status, live.next_attempt_at) <= (wanted.sequence, 'dead', 253402300799999)
    ORDER BY live.sequence, live.status, live.next_attempt_at LIMIT 1
) IS NOT NULL
