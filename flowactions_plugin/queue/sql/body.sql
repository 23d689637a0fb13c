-- Read a large body, which the claim has left out.
SELECT body FROM flowactions_outbox WHERE id = :id AND claimed_by = :token
