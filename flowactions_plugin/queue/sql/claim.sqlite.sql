-- Claim the oldest rows that are due of each lane of ``asked``, the same number of each. A lease counts as expired if it had when the
-- lanes were looked for: this statement may have waited.
-- SQLite may plan by figures of when the queue was empty: a CROSS JOIN keeps the order. With an equality, it may read the whole table.
UPDATE flowactions_outbox SET
    claimed_by = :token, claimed_until = {now} + :lease, updated_at = {now},
    takeovers = takeovers + CASE WHEN claimed_by IS NULL THEN 0 ELSE 1 END
WHERE rowid IN (
    SELECT oldest.rowid
    FROM (
        SELECT value ->> 'lane' AS lane, value ->> 'since' AS since, value ->> 'organization_id' AS organization_id,
            value ->> 'destination' AS destination, value ->> 'probe' AS probe
        FROM json_each(:asked)
    ) AS asked
    CROSS JOIN flowactions_outbox AS oldest
    WHERE oldest.rowid IN (
        SELECT rowid FROM flowactions_outbox INDEXED BY ix_flowactions_outbox_lane
        WHERE (lane, next_attempt_at) >= (asked.lane, asked.since) AND (lane, next_attempt_at) <= (asked.lane, {now})
          AND status IN ('pending', 'retrying') AND takeovers < 3
          AND (claimed_until IS NULL OR claimed_until <= CAST(:looked_at AS bigint)
            - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
        ORDER BY lane, next_attempt_at, id LIMIT :rows
    ) AND (asked.probe OR NOT EXISTS (
        SELECT 1 FROM flowactions_pauses AS pause
        WHERE pause.destination = asked.destination AND pause.organization_id IN ('', asked.organization_id)
    ))
)
RETURNING id, claimed_by, organization_id, agent_id, event_id, event_type, origin, url, destination, method, headers,
    CASE WHEN length(body) <= 65536 THEN body END AS body, attempts, earlier_attempts, max_attempts, takeovers, quarantine_rounds,
    {now} - waiting_since AS waited_ms, last_error, trace, sequence, expires_at - {now} AS left_ms,
    lane, next_attempt_at, coalesce(length(body), 0) + length(headers) AS size
