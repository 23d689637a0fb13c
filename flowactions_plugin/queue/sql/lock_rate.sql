-- Lock the row of an agent's calls, and make it if it is missing.
INSERT INTO flowactions_enqueue_rates (organization_id, agent_id, times, updated_at)
VALUES (:organization_id, :agent_id, '[]', {now})
ON CONFLICT (organization_id, agent_id) DO UPDATE SET updated_at = {now} RETURNING times
