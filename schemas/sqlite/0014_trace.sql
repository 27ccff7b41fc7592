-- The trace context of tasks and steps. Version 14.

-- The W3C trace context in which a task was started, and that of the last attempt of a step: `traceparent`, then, if there is
-- one, a space and `tracestate`. NULL without a trace. Messages carry theirs in the headers.
ALTER TABLE tasks ADD COLUMN trace TEXT CHECK (length(trace) <= 512);
ALTER TABLE steps ADD COLUMN trace TEXT CHECK (length(trace) <= 512);
