-- Find those of the rows ``held`` that may not begin: their claim has ended, somebody has cancelled them, or their destination is paused.
SELECT held.id
FROM json_to_recordset(CAST(:held AS json)) AS held (id text, token text, organization_id text, destination text)
WHERE NOT EXISTS (
    SELECT 1 FROM flowactions_outbox AS mine
    WHERE mine.id = held.id AND mine.claimed_by = held.token AND mine.status IN ('pending', 'retrying')
) OR EXISTS (
    SELECT 1 FROM flowactions_pauses AS pause
    WHERE pause.destination = held.destination AND pause.organization_id IN ('', held.organization_id)
)
