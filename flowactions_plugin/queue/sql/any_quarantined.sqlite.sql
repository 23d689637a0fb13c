-- Return a row if one is due that may be sent in quarantine only: its leases have ended three times.
SELECT {now} AS now WHERE EXISTS (
    SELECT id FROM flowactions_outbox INDEXED BY ix_flowactions_outbox_quarantined
    WHERE status IN ('pending', 'retrying') AND takeovers >= 3 AND next_attempt_at <= {now}
      AND (claimed_until IS NULL OR claimed_until <= {now}
            - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
      AND NOT EXISTS (
          SELECT 1 FROM flowactions_pauses AS pause
          WHERE pause.destination = flowactions_outbox.destination AND pause.organization_id IN ('', flowactions_outbox.organization_id)
      )
    ORDER BY next_attempt_at, id LIMIT 1
)
