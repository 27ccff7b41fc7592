"""Run operations on a database: batches, transactions, wake-ups, named SQL."""
