"""The rules of the bus, tested without a database: rows go in, statements come out."""
