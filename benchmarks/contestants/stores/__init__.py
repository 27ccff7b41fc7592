"""The contestants of the state benchmark: somewhere to keep JSON under a key."""
