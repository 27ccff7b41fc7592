-- Dependencies of tasks, and work items that agents take. Version 8.

-- `manual`: a work item without code, which an agent takes and finishes; `priority` orders items, 9 first. `on_failed`: what
-- happens to a task when one of its dependencies fails or is stopped, NULL for a task without dependencies. `not_before`: the
-- wall time before which a task with dependencies does not start.
ALTER TABLE tasks ADD COLUMN manual INTEGER NOT NULL DEFAULT 0 CHECK (manual = 0 OR manual = 1);
ALTER TABLE tasks ADD COLUMN priority INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9);
ALTER TABLE tasks ADD COLUMN on_failed TEXT CHECK (on_failed = 'block' OR on_failed = 'cancel');
ALTER TABLE tasks ADD COLUMN not_before INTEGER NOT NULL DEFAULT 0 CHECK (not_before >= 0);

-- This serves the taking of items exactly, as tasks_ready serves the claims of workers.
CREATE INDEX tasks_takable ON tasks (priority DESC, number, workflow) WHERE due = 0 AND manual = 1;

-- The tasks that a task waits for before it starts. `dependency` is the id of a task, which may have been deleted since.
-- `completed`: the wall time at which it completed, NULL while the task waits for it.
CREATE TABLE dependencies (
    task       INTEGER NOT NULL REFERENCES tasks (number),
    dependency TEXT    NOT NULL
               CHECK (length(dependency) BETWEEN 1 AND 128 AND dependency NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                      AND instr(dependency, char(0)) = 0),
    completed  INTEGER CHECK (completed >= 0),
    PRIMARY KEY (task, dependency)
) STRICT, WITHOUT ROWID;

CREATE INDEX dependencies_by_dependency ON dependencies (dependency, completed);
