"""Durable tasks: workflows, the task that a workflow receives, ``bus.tasks``, and workers.

Nothing is imported here: reading and controlling tasks needs no event loop, running them does.
"""

from __future__ import annotations
