"""Running a command as a resident agent: a guard that owns it, streams that pass through, and its life on the bus.

Three processes, as sudo has them: ``agentbus run``, which people see, passes bytes and signals on and has the bus
open; the guard, leader of a session of its own, which starts the command and waits for it; the command, in a group of
its own. Whichever of the first two is killed, the other one ends the command and all that it started.
"""
