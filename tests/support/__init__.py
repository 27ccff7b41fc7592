"""Support for tests of every floor: fakes of time, processes, servers and terminals."""
