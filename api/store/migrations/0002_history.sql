-- How much a job's journal takes, so that all history together can be bounded; and which namespace of a name a job was in.

-- Bytes of the job's entries, about.
ALTER TABLE numbers ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE numbers SET bytes = (SELECT COALESCE(SUM(length(e.body) + 128), 0) FROM entries e WHERE e.uid = numbers.uid);

-- Of a namespace that was made anew for somebody else the name is the same. NULL where namespaces have no UID, and in rows of
-- the first schema.
ALTER TABLE jobs ADD COLUMN namespace_uid TEXT;
