-- Notifications out of the bus. Version 13.

-- The progress of each notifier of a user through the audit log. `name`: owner/sink. Every event up to `cursor` is settled: it
-- was delivered, given up, dropped or of no interest. `first` and `until`: the events of the notification that is being
-- delivered, which every attempt repeats; `skipped`: the number of events dropped right before it. Times are wall times.
-- `failures`: attempts that failed since the last one that succeeded. Nothing here says where or how to deliver: that is in
-- the settings of the user. Export, copy and archive leave the table out: a copy of the bus notifies of nothing old.
CREATE TABLE notifiers (
    name        TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 300),
    cursor      INTEGER NOT NULL CHECK (cursor >= 0),
    first       INTEGER CHECK (first > cursor),
    until       INTEGER CHECK (until >= first),
    skipped     INTEGER NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    attempts    INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    failures    INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    lease       INTEGER NOT NULL DEFAULT 0 CHECK (lease >= 0),
    lease_until INTEGER CHECK (lease_until >= 0),
    due         INTEGER CHECK (due >= 0),
    delivered   INTEGER NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    dropped     INTEGER NOT NULL DEFAULT 0 CHECK (dropped >= 0),
    dead        INTEGER NOT NULL DEFAULT 0 CHECK (dead >= 0),
    error       TEXT    CHECK (length(error) BETWEEN 1 AND 500),
    created     INTEGER NOT NULL CHECK (created >= 0),
    updated     INTEGER NOT NULL CHECK (updated >= 0),
    CHECK ((first IS NULL) = (until IS NULL))
) STRICT, WITHOUT ROWID;
