-- Write the ends of claims. ``status`` is ``returned`` of a row that is given back, which keeps its state; ``waits`` is then 1 if it waits
-- for ``error``, 0 if it waits as before, and NULL if what it has waited for is over. ``number`` is NULL where no attempt was made.
-- Somebody may have cancelled a row while it was on its way: a failed attempt is then its last one.
UPDATE flowactions_outbox SET
    claimed_by = NULL, claimed_until = NULL, settled_token = done.token, updated_at = {now},
    takeovers = CASE WHEN done.status = 'returned' THEN takeovers ELSE 0 END,
    quarantine_rounds = coalesce(done.rounds, 0),
    waiting_since = CASE done.waits WHEN 1 THEN coalesce(waiting_since, {now}) WHEN 0 THEN waiting_since END,
    status = CASE
        WHEN done.status = 'returned' OR flowactions_outbox.status = 'dead' AND done.status IN ('retrying', 'returned') THEN flowactions_outbox.status
        ELSE done.status END,
    attempts = attempts + CASE WHEN done.number IS NULL THEN 0 ELSE 1 END,
    max_attempts = max_attempts + done.granted,
    next_attempt_at = {now} + CASE
        WHEN flowactions_outbox.status = 'dead' AND done.status IN ('retrying', 'returned') THEN 0
        ELSE done.delay_ms END,
    last_status_code = CASE WHEN done.number IS NULL THEN last_status_code ELSE done.status_code END,
    last_error = CASE
        WHEN flowactions_outbox.status = 'dead' AND done.status IN ('retrying', 'returned')
            THEN replace(flowactions_outbox.last_error, '; a worker had claimed it, and may have sent it', '')
        WHEN done.status = 'returned' THEN coalesce(done.error, flowactions_outbox.last_error)
        ELSE done.error END,
    error_class = CASE
        WHEN flowactions_outbox.status = 'dead' AND done.status IN ('retrying', 'returned') OR (done.status = 'returned' AND done.error IS NULL)
            THEN flowactions_outbox.error_class
        ELSE done.error_class END,
    delivered_started_at = CASE WHEN done.status = 'delivered' THEN done.started_at END,
    delivered_duration_ms = CASE WHEN done.status = 'delivered' THEN done.duration_ms END,
    delivered_response = CASE WHEN done.status = 'delivered' THEN CAST(done.response AS BLOB) END,
    delivered_phases = CASE WHEN done.status = 'delivered' THEN done.phases END,
    finished_at = CASE
        WHEN flowactions_outbox.status = 'dead' AND done.status IN ('retrying', 'returned') THEN finished_at
        WHEN done.status IN ('delivered', 'dead') THEN {now} END
FROM (
    SELECT value ->> 'id' AS id, value ->> 'token' AS token, value ->> 'status' AS status, value ->> 'error' AS error,
        value ->> 'error_class' AS error_class, value ->> 'response' AS response, value ->> 'phases' AS phases,
        value ->> 'granted' AS granted, value ->> 'status_code' AS status_code, value ->> 'number' AS number,
        value ->> 'duration_ms' AS duration_ms, value ->> 'rounds' AS rounds, value ->> 'waits' AS waits,
        value ->> 'delay_ms' AS delay_ms, value ->> 'started_at' AS started_at
    FROM json_each(:done)
) AS done
WHERE flowactions_outbox.id = done.id AND flowactions_outbox.claimed_by = done.token
RETURNING flowactions_outbox.id, flowactions_outbox.status, flowactions_outbox.settled_token
