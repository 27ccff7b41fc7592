"""The contestants of the state benchmark: key-value stores of JSON."""
