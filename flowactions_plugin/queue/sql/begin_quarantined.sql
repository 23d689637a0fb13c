-- Count a round in quarantine as begun. The number is that of the claim and one more: a repeated write counts once.
UPDATE flowactions_outbox SET quarantine_rounds = :rounds, updated_at = {now}
WHERE id = :id AND claimed_by = :token
RETURNING body
