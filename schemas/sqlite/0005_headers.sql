-- Headers of messages. Version 5.

-- An object of text to text: metadata of the sender, such as a trace context. NULL for none. The column is stored after the
-- payload: read it only in queries that read the payload.
ALTER TABLE messages ADD COLUMN headers TEXT
    CHECK (headers IS NULL OR (length(headers) <= 4096 AND json_valid(headers) AND json_type(headers) = 'object'));
