-- The record of notifications as format 1 wrote it.
CREATE TABLE channels (
    name TEXT NOT NULL,
    origin TEXT NOT NULL,
    since INTEGER NOT NULL,
    error TEXT,
    PRIMARY KEY (name, origin)
) STRICT;
CREATE TABLE cursors (
    channel TEXT NOT NULL,
    session TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    next INTEGER NOT NULL,
    until INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    retry_at INTEGER,
    holder TEXT,
    held_until INTEGER,
    PRIMARY KEY (channel, session, created_at)
) STRICT;
INSERT INTO channels VALUES ('ops', 'a', 1000, 'down');
INSERT INTO cursors VALUES ('ops', 's', 5, 4, 9, 2, NULL, NULL, NULL);
PRAGMA application_id = 1768846190;
PRAGMA user_version = 1;
