-- Write the times of an agent's calls; its row is locked.
UPDATE flowactions_enqueue_rates SET times = :times, updated_at = :at
WHERE organization_id = :organization_id AND agent_id = :agent_id
