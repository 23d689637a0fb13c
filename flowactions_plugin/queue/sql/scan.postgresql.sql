-- Find the lanes in which a row is due. Each is found from its newest row: the index entries of ended rows are the oldest.
WITH RECURSIVE lanes(lane) AS (
    SELECT (
        SELECT lane FROM flowactions_outbox WHERE status IN ('pending', 'retrying')
        ORDER BY lane DESC, next_attempt_at DESC, id DESC LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT lane FROM flowactions_outbox WHERE status IN ('pending', 'retrying') AND lane < lanes.lane
        ORDER BY lane DESC, next_attempt_at DESC, id DESC LIMIT 1
    )
    FROM lanes WHERE lanes.lane IS NOT NULL
)
SELECT oldest.lane, oldest.organization_id, oldest.destination, oldest.next_attempt_at AS since, {now} AS now
FROM lanes CROSS JOIN flowactions_outbox AS oldest
WHERE oldest.id = ANY (ARRAY(
    SELECT id FROM flowactions_outbox
    WHERE (lane, next_attempt_at) >= (lanes.lane, CAST('-9223372036854775808' AS bigint))
      AND (lane, next_attempt_at) <= (lanes.lane, {now})
      AND status IN ('pending', 'retrying') AND takeovers < 3
      AND (claimed_until IS NULL OR claimed_until <= {now}
        - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
    ORDER BY lane, next_attempt_at, id LIMIT 1
)) AND NOT EXISTS (
    SELECT 1 FROM flowactions_pauses AS pause
    WHERE pause.destination = oldest.destination AND pause.organization_id IN ('', oldest.organization_id)
)
