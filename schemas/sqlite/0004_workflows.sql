-- Bounded losses of workers, redos that wait, and the signatures of workflows. Version 4.

-- `losses` counts the workers that died or lost their lease while they ran the task, since it last made progress or a
-- person resumed it; at `max_losses` the task fails. `redo` lists the redos that wait until concurrent steps end.
ALTER TABLE tasks ADD COLUMN losses INTEGER NOT NULL DEFAULT 0 CHECK (losses >= 0);
ALTER TABLE tasks ADD COLUMN max_losses INTEGER NOT NULL DEFAULT 5 CHECK (max_losses BETWEEN 1 AND 1000);
ALTER TABLE tasks ADD COLUMN redo TEXT
    CHECK (redo IS NULL OR (status = 'running' AND json_valid(redo) AND json_type(redo) = 'array'));

-- The steps and approvals of a task are numbered in the order in which they end: `ending`. `seen` is the last of these
-- numbers that the workflow knew when it reached this step: only a step that has seen an ending can depend on it. NULL for
-- steps recorded before version 4; `ending` is NULL until the step ends.
ALTER TABLE steps ADD COLUMN seen INTEGER CHECK (seen >= 0);
ALTER TABLE steps ADD COLUMN ending INTEGER CHECK (ending >= 0);
ALTER TABLE approvals ADD COLUMN seen INTEGER CHECK (seen >= 0);
ALTER TABLE approvals ADD COLUMN ending INTEGER CHECK (ending >= 0);

-- The parameters of a workflow, as announced by each running worker.
CREATE TABLE workflows (
    workflow  TEXT NOT NULL
              CHECK (length(workflow) BETWEEN 1 AND 128 AND workflow NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                     AND instr(workflow, char(0)) = 0),
    agent     TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    signature TEXT NOT NULL CHECK (json_valid(signature) AND json_type(signature) = 'array'),
    PRIMARY KEY (workflow, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX workflows_by_agent ON workflows (agent);
