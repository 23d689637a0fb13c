-- Lock sequences until the transaction ends, in one order, so that two transactions do not wait for each other. If that takes longer
-- than a moment, the statement fails, and the next look does what it would have done.
SELECT pg_advisory_xact_lock(wanted.sequence)
FROM ({wanted} WHERE set_config('lock_timeout', '100ms', true) IS NOT NULL ORDER BY 1) AS wanted
