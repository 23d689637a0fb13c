-- Claim the oldest row that may be sent in quarantine only. Of such a row, the rounds that were begun are counted, and not the reclaims.
UPDATE flowactions_outbox SET claimed_by = :token, claimed_until = {now} + :lease, updated_at = {now}
WHERE id = (
    SELECT id FROM flowactions_outbox INDEXED BY ix_flowactions_outbox_quarantined
    WHERE status IN ('pending', 'retrying') AND takeovers >= 3 AND next_attempt_at <= {now}
      AND (claimed_until IS NULL OR claimed_until <= CAST(:looked_at AS bigint)
            - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
      AND NOT EXISTS (
          SELECT 1 FROM flowactions_pauses AS pause
          WHERE pause.destination = flowactions_outbox.destination AND pause.organization_id IN ('', flowactions_outbox.organization_id)
      )
    ORDER BY next_attempt_at, id LIMIT 1
)
RETURNING id, claimed_by, organization_id, agent_id, event_id, event_type, origin, url, destination, method, headers,
    CASE WHEN length(body) <= 65536 THEN body END AS body, attempts, earlier_attempts, max_attempts, takeovers, quarantine_rounds,
    {now} - waiting_since AS waited_ms, last_error, trace, sequence, expires_at - {now} AS left_ms,
    lane, next_attempt_at, coalesce(length(body), 0) + length(headers) AS size
