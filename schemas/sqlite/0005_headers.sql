-- Headers of messages. Version 5.

-- An object of text to text: metadata of a sender, such as a trace context. NULL for none. The column follows the payload, so
-- that only queries that read the payload should read it.
ALTER TABLE messages ADD COLUMN headers TEXT
    CHECK (headers IS NULL OR (length(headers) <= 4096 AND json_valid(headers) AND json_type(headers) = 'object'));
