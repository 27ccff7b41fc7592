-- Headers of messages. Version 5, on PostgreSQL.

-- An object of text to text: metadata of the sender, such as a trace context. NULL for none.
ALTER TABLE messages ADD COLUMN headers text COLLATE "C"
    CHECK (headers IS NULL OR (length(headers) <= 4096 AND json_typeof(headers::json) = 'object'));
