-- Find the probes that are due, each with the lane of the row that has waited for longest.
SELECT pause.organization_id, pause.destination, pause.probe_at, pause.probes, oldest.lane, {now} AS now
FROM flowactions_pauses AS pause CROSS JOIN flowactions_outbox AS oldest
WHERE oldest.id = ANY (ARRAY(
    SELECT id FROM flowactions_outbox
    WHERE destination = pause.destination AND organization_id = pause.organization_id
      AND status IN ('pending', 'retrying') AND takeovers < 3 AND next_attempt_at <= {now}
      AND (claimed_until IS NULL OR claimed_until <= {now}
        - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
    ORDER BY next_attempt_at, id LIMIT 1
)) AND pause.paused_role = 'automatic' AND pause.probe_at <= {now} AND NOT EXISTS (
    SELECT 1 FROM flowactions_pauses AS other WHERE other.destination = pause.destination AND other.organization_id = ''
)
ORDER BY pause.probe_at LIMIT 10
