-- Notifications out of the bus. Version 13, on PostgreSQL.

-- The progress of each notifier of a user through the audit log. `name`: owner/sink. Every event up to `cursor` is settled: it
-- was delivered, given up, dropped or of no interest. `first` and `until`: the events of the notification that is being
-- delivered, which every attempt repeats; `skipped`: the number of events dropped right before it. Times are wall times.
-- `failures`: attempts that failed since the last one that succeeded. Nothing here says where or how to deliver: that is in
-- the settings of the user. Export, copy and archive leave the table out: a copy of the bus notifies of nothing old.
CREATE TABLE notifiers (
    name        text COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 300),
    cursor      bigint NOT NULL CHECK (cursor >= 0),
    first       bigint CHECK (first > cursor),
    until       bigint CHECK (until >= first),
    skipped     bigint NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    attempts    bigint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    failures    bigint NOT NULL DEFAULT 0 CHECK (failures >= 0),
    lease       bigint NOT NULL DEFAULT 0 CHECK (lease >= 0),
    lease_until bigint CHECK (lease_until >= 0),
    due         bigint CHECK (due >= 0),
    delivered   bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    dropped     bigint NOT NULL DEFAULT 0 CHECK (dropped >= 0),
    dead        bigint NOT NULL DEFAULT 0 CHECK (dead >= 0),
    error       text COLLATE "C" CHECK (length(error) BETWEEN 1 AND 500),
    created     bigint NOT NULL CHECK (created >= 0),
    updated     bigint NOT NULL CHECK (updated >= 0),
    CHECK ((first IS NULL) = (until IS NULL))
);
