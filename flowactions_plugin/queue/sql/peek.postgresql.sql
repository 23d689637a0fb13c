-- Read when the oldest rows of the lanes of ``asked`` were due.
SELECT oldest.lane, oldest.next_attempt_at, oldest.id
FROM json_to_recordset(CAST(:asked AS json))
    AS asked (lane bigint, rows int, since bigint, organization_id text, destination text, probe boolean)
CROSS JOIN flowactions_outbox AS oldest
WHERE oldest.id = ANY (ARRAY(SELECT id FROM (
    SELECT id FROM flowactions_outbox
    WHERE (lane, next_attempt_at) >= (asked.lane, asked.since) AND (lane, next_attempt_at) <= (asked.lane, {now})
      AND status IN ('pending', 'retrying') AND takeovers < 3
      AND (claimed_until IS NULL OR claimed_until <= {now}
        - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
    ORDER BY lane, next_attempt_at, id LIMIT 1000
) AS first LIMIT asked.rows))
