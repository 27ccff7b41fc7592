"""The rules of the bus, tested without a database: rows go in by hand, statements come out."""
