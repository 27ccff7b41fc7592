-- Bounded losses of workers, redos that wait, and the signatures of workflows. Version 4.

-- `losses` counts the workers that died or lost their lease while they ran the task, since it last made progress or a
-- person resumed it; at `max_losses` the task fails. `redo` lists the redos that wait until the steps beside them end.
ALTER TABLE tasks ADD COLUMN losses INTEGER NOT NULL DEFAULT 0 CHECK (losses >= 0);
ALTER TABLE tasks ADD COLUMN max_losses INTEGER NOT NULL DEFAULT 5 CHECK (max_losses BETWEEN 1 AND 1000);
ALTER TABLE tasks ADD COLUMN redo TEXT
    CHECK (redo IS NULL OR (status = 'running' AND json_valid(redo) AND json_type(redo) = 'array'));

-- The steps and approvals of a task are numbered in the order in which they end: `ending`. `seen` is the last of these
-- numbers that the workflow knew of when it came to this one: only what has seen an ending can depend on it. NULL for what
-- was recorded before version 4, and `ending` for what has not ended.
ALTER TABLE steps ADD COLUMN seen INTEGER CHECK (seen >= 0);
ALTER TABLE steps ADD COLUMN ending INTEGER CHECK (ending >= 0);
ALTER TABLE approvals ADD COLUMN seen INTEGER CHECK (seen >= 0);
ALTER TABLE approvals ADD COLUMN ending INTEGER CHECK (ending >= 0);

-- The parameters that a workflow takes, as each worker that runs announces them.
CREATE TABLE workflows (
    workflow  TEXT NOT NULL
              CHECK (length(workflow) BETWEEN 1 AND 128 AND workflow NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                     AND instr(workflow, char(0)) = 0),
    agent     TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    signature TEXT NOT NULL CHECK (json_valid(signature) AND json_type(signature) = 'array'),
    PRIMARY KEY (workflow, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX workflows_by_agent ON workflows (agent);
