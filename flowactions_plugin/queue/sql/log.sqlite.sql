-- Write attempts that did not deliver to the attempts log, after the ends of their claims. A log that holds this number already must not
-- keep the outcome from being written.
INSERT INTO flowactions_attempts (delivery_id, number, started_at, duration_ms, status_code, error, response, phases, worker)
SELECT done.value ->> 'id', done.value ->> 'number', done.value ->> 'started_at', done.value ->> 'duration_ms',
    done.value ->> 'status_code', done.value ->> 'error', CAST(done.value ->> 'response' AS BLOB), done.value ->> 'phases',
    substr(done.value ->> 'token', 1, 8)
FROM json_each(:done) AS done
CROSS JOIN flowactions_outbox AS written ON written.id = done.value ->> 'id' AND written.settled_token = done.value ->> 'token'
WHERE done.value ->> 'number' IS NOT NULL AND done.value ->> 'status' <> 'delivered'
ON CONFLICT DO NOTHING
