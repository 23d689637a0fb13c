-- Read when the oldest rows of the lanes of ``asked`` were due.
SELECT oldest.lane, oldest.next_attempt_at, oldest.id
FROM (SELECT value ->> 'lane' AS lane, value ->> 'since' AS since FROM json_each(:asked)) AS asked
CROSS JOIN flowactions_outbox AS oldest
WHERE oldest.rowid IN (
    SELECT rowid FROM flowactions_outbox INDEXED BY ix_flowactions_outbox_lane
    WHERE (lane, next_attempt_at) >= (asked.lane, asked.since) AND (lane, next_attempt_at) <= (asked.lane, {now})
      AND status IN ('pending', 'retrying') AND takeovers < 3
      AND (claimed_until IS NULL OR claimed_until <= {now}
        - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
    ORDER BY lane, next_attempt_at, id LIMIT :rows
)
