"""What tests of every kind share: time that stands still until it is moved."""
