"""The rules of the bus, checked through the public API alone, on every engine."""
