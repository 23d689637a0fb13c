-- Find the lanes of rows that have become due within the last so many milliseconds; a scan finds those beyond the limit.
SELECT lane, min(organization_id) AS organization_id, min(destination) AS destination, min(next_attempt_at) AS since, {now} AS now
FROM (
    SELECT lane, organization_id, destination, next_attempt_at FROM flowactions_outbox
    WHERE status IN ('pending', 'retrying') AND takeovers < 3
      AND next_attempt_at > {now} - :milliseconds AND next_attempt_at <= {now}
      AND (claimed_until IS NULL OR claimed_until <= {now}
        - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
    ORDER BY next_attempt_at LIMIT 5000
) AS due
WHERE NOT EXISTS (
    SELECT 1 FROM flowactions_pauses AS pause
    WHERE pause.destination = due.destination AND pause.organization_id IN ('', due.organization_id)
)
GROUP BY lane
