"""Import of existing data: JSON files, databases and archives."""
