-- Write the ends of claims, and those attempts that did not deliver to the attempts log. A log that holds this number already must not
-- keep the outcome from being written.
WITH written AS (
{complete}
), logged AS (
    INSERT INTO flowactions_attempts (delivery_id, number, started_at, duration_ms, status_code, error, response, phases, worker)
    SELECT done.id, done.number, done.started_at, done.duration_ms, done.status_code, done.error,
        convert_to(done.response, 'UTF8'), done.phases, substr(done.token, 1, 8)
    FROM json_to_recordset(CAST(:done AS json)) AS done (
        id text, token text, status text, error text, response text, phases text, status_code int, number int, duration_ms int,
        started_at bigint
    )
    JOIN written ON written.id = done.id AND written.settled_token = done.token
    WHERE done.number IS NOT NULL AND done.status <> 'delivered'
    ON CONFLICT DO NOTHING
)
SELECT id, status FROM written
