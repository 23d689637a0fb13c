-- Return a row if a probe of a delivery has failed before.
SELECT 1 FROM flowactions_attempts WHERE delivery_id = :id AND phases LIKE '%"probe"%' LIMIT 1
