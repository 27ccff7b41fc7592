"""Durable tasks as callers work with them: workflows, the task that a workflow is given, ``bus.tasks``, and workers.

Nothing is imported here: looking at tasks and controlling them needs no event loop, running them does.
"""
