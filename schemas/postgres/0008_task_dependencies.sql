-- Dependencies of tasks, and work items that agents take. Version 8, on PostgreSQL.

-- `manual`: a work item without code, which an agent takes and finishes; `priority` orders items, 9 first. `on_failed`: what
-- happens to a task when one of its dependencies fails or is stopped, NULL for a task without dependencies. `not_before`: the
-- wall time before which a task with dependencies does not start.
ALTER TABLE tasks ADD COLUMN manual bigint NOT NULL DEFAULT 0 CHECK (manual IN (0, 1));
ALTER TABLE tasks ADD COLUMN priority bigint NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9);
ALTER TABLE tasks ADD COLUMN on_failed text COLLATE "C" CHECK (on_failed IN ('block', 'cancel'));
ALTER TABLE tasks ADD COLUMN not_before bigint NOT NULL DEFAULT 0 CHECK (not_before >= 0);

-- This serves the taking of items exactly, as tasks_ready serves the claims of workers.
CREATE INDEX tasks_takable ON tasks (priority DESC, number, workflow) WHERE due = 0 AND manual = 1;

-- The tasks that a task waits for before it starts. `dependency` is the id of a task, which may have been deleted since.
-- `completed`: the wall time at which it completed, NULL while the task waits for it.
CREATE TABLE dependencies (
    task       bigint NOT NULL REFERENCES tasks (number),
    dependency text COLLATE "C" NOT NULL CHECK (dependency ~ '^[A-Za-z0-9._:@/-]{1,128}$'),
    completed  bigint CHECK (completed >= 0),
    PRIMARY KEY (task, dependency)
);

CREATE INDEX dependencies_by_dependency ON dependencies (dependency, completed);
