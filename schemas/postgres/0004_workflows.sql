-- Bounded losses of workers, redos that wait, and the signatures of workflows. Version 4, on PostgreSQL.

-- `losses` counts the workers that died or lost their lease while they ran the task, since it last made progress or a
-- person resumed it; at `max_losses` the task fails. `redo` lists the redos that wait until concurrent steps end.
ALTER TABLE tasks ADD COLUMN losses bigint NOT NULL DEFAULT 0 CHECK (losses >= 0);
ALTER TABLE tasks ADD COLUMN max_losses bigint NOT NULL DEFAULT 5 CHECK (max_losses BETWEEN 1 AND 1000);
ALTER TABLE tasks ADD COLUMN redo text COLLATE "C"
    CHECK (redo IS NULL OR (status = 'running' AND json_typeof(redo::json) = 'array'));

-- The steps and approvals of a task are numbered in the order in which they end: `ending`. `seen` is the last of these
-- numbers that the workflow knew when it reached this step: only a step that has seen an ending can depend on it. NULL for
-- steps recorded before version 4; `ending` is NULL until the step ends.
ALTER TABLE steps ADD COLUMN seen bigint CHECK (seen >= 0);
ALTER TABLE steps ADD COLUMN ending bigint CHECK (ending >= 0);
ALTER TABLE approvals ADD COLUMN seen bigint CHECK (seen >= 0);
ALTER TABLE approvals ADD COLUMN ending bigint CHECK (ending >= 0);

-- The parameters of a workflow, as announced by each running worker.
CREATE TABLE workflows (
    workflow  text COLLATE "C" NOT NULL CHECK (workflow ~ '^[A-Za-z0-9._:@/-]{1,128}$'),
    agent     text COLLATE "C" NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    signature text COLLATE "C" NOT NULL CHECK (json_typeof(signature::json) = 'array'),
    PRIMARY KEY (workflow, agent)
);

CREATE INDEX workflows_by_agent ON workflows (agent);
