-- Claim the oldest rows that are due of each lane of ``asked``. One that is changed meanwhile stands elsewhere, and is left to the next
-- claim. What a notification has said of a lane is not believed: rows of others stay. A lease counts as expired if it had when the lanes were looked for: this statement may have waited.
-- An array is made once: of a join, PostgreSQL would expect thousands of rows, and read the whole table. A limit that is not known to
-- it counts as a tenth of what it limits: without the one inside, of a whole lane, and the statement would be compiled (JIT).
-- Both ends of a part of the lane's index: with an equality, PostgreSQL may search the index of all rows that are due.
UPDATE flowactions_outbox SET
    claimed_by = :token, claimed_until = {now} + :lease, updated_at = {now},
    takeovers = takeovers + CASE WHEN claimed_by IS NULL THEN 0 ELSE 1 END
WHERE ctid = ANY (ARRAY(
    SELECT oldest.ctid
    FROM json_to_recordset(CAST(:asked AS json))
        AS asked (lane bigint, rows int, since bigint, organization_id text, destination text, probe boolean)
    CROSS JOIN LATERAL (SELECT ctid, organization_id, destination FROM (
        SELECT ctid, organization_id, destination FROM flowactions_outbox
        WHERE (lane, next_attempt_at) >= (asked.lane, asked.since) AND (lane, next_attempt_at) <= (asked.lane, {now})
          AND status IN ('pending', 'retrying') AND takeovers < 3
          AND (claimed_until IS NULL OR claimed_until <= CAST(:looked_at AS bigint)
            - CASE WHEN substr(claimed_by, 1, 8) = :own THEN 0 ELSE CAST(:grace AS bigint) END)
        ORDER BY lane, next_attempt_at, id LIMIT 1000
        FOR UPDATE SKIP LOCKED
    ) AS first LIMIT asked.rows) AS oldest
    WHERE (oldest.organization_id, oldest.destination) = (asked.organization_id, asked.destination) AND (asked.probe OR NOT EXISTS (
        SELECT 1 FROM flowactions_pauses AS pause
        WHERE pause.destination = asked.destination AND pause.organization_id IN ('', asked.organization_id)
    ))
))
RETURNING id, claimed_by, organization_id, agent_id, event_id, event_type, origin, url, destination, method, headers,
    CASE WHEN octet_length(body) <= 65536 THEN body END AS body, attempts, earlier_attempts, max_attempts, takeovers, quarantine_rounds,
    {now} - waiting_since AS waited_ms, last_error, trace, sequence, expires_at - {now} AS left_ms,
    lane, next_attempt_at, coalesce(octet_length(body), 0) + octet_length(headers) AS size
