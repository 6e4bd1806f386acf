-- The first schema. Read by SQLite and PostgreSQL alike: TEXT, BIGINT (also for truth, 0 or 1) and nothing of either alone.
-- Times are milliseconds since 1970-01-01 UTC. A migration that was released is never changed: the next one is a new file.

-- Every job there is, and every one there was until retention forgets it.
CREATE TABLE jobs (
    uid TEXT NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    submitted_by TEXT,
    idempotency_key TEXT,
    body_hash TEXT,
    version BIGINT NOT NULL,
    document TEXT NOT NULL,
    state TEXT,
    finished_ms BIGINT,
    deleted_ms BIGINT
);
-- A name belongs to one job that lives; a key to one job, alive or not, until it lets go of it.
CREATE UNIQUE INDEX jobs_live_name ON jobs (namespace, name) WHERE deleted_ms IS NULL;
CREATE UNIQUE INDEX jobs_key ON jobs (namespace, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Lists, newest first: of everything, of a namespace, of a name.
CREATE INDEX jobs_age ON jobs (created_ms, uid);
CREATE INDEX jobs_namespace_age ON jobs (namespace, created_ms, uid);
CREATE INDEX jobs_name_age ON jobs (namespace, name, created_ms, uid);

-- The newest numbers given under a job; whoever writes there holds this row, so that numbers are never given twice. Apart from
-- the job, whose long document would be written anew each time.
CREATE TABLE numbers (
    uid TEXT NOT NULL PRIMARY KEY REFERENCES jobs (uid) ON DELETE CASCADE,
    entry BIGINT NOT NULL,
    event BIGINT NOT NULL
);

-- Copies of the coordinators' journals.
CREATE TABLE entries (
    uid TEXT NOT NULL REFERENCES jobs (uid) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    kind TEXT NOT NULL,
    mode TEXT,
    step BIGINT,
    agent TEXT,
    level BIGINT,
    body TEXT NOT NULL,
    PRIMARY KEY (uid, number)
);
CREATE INDEX entries_kind ON entries (uid, kind, number);

-- The curves as they stand: for each step the entry that counts.
CREATE TABLE points (
    uid TEXT NOT NULL REFERENCES jobs (uid) ON DELETE CASCADE,
    mode TEXT NOT NULL,
    step BIGINT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (uid, mode, step)
);

CREATE TABLE events (
    uid TEXT NOT NULL REFERENCES jobs (uid) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    warning BIGINT NOT NULL,
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (uid, number)
);

CREATE TABLE appliances (
    name TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    document TEXT NOT NULL
);

CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    namespaces TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT,
    last_used_ms BIGINT
);
