"""How long a run may take, part by part: about ten minutes for everything, one if it is to be quick.

Seconds on two idle cores, with everyone there. The progress estimates from them; whoever makes a part longer has to
find the time in another. ``results.json`` says what each part took.
"""

from __future__ import annotations

MINUTES = (10.0, 1.0)
"""For everything in full, and quickly."""

SECONDS: dict[str, tuple[float, float]] = {
    "queue.one": (50, 5),
    "queue.tasks": (38, 5),
    "queue.tasks-fused": (8, 1),
    "queue.batches": (27, 3),
    "queue.processes": (50, 4),
    "queue.idle": (85, 5),
    "queue.growth": (70, 4),
    "queue.beats": (38, 4),
    "writers.1": (5, 1),
    "writers.2": (5, 1),
    "writers.4": (5, 1),
    "writers.8": (6, 1),
    "writers.16": (7, 0),
    "writers.32": (9, 0),
    "writers.64": (14, 0),
    "state.get": (8, 1),
    "state.get-tasks": (8, 1),
    "state.set": (8, 1),
    "state.set-tasks": (8, 1),
    "state.cas": (8, 1),
    "state.cas-tasks": (8, 1),
    "state.checkpoints": (8, 1),
    "registry.100": (8, 1),
    "registry.1000": (8, 2),
    "registry.10000": (12, 0),
    "recovery.100": (4, 1),
    "recovery.1000": (5, 1),
    "recovery.1000-open": (3, 1),
    "recovery.10000": (9, 0),
    "recovery.sweep": (6, 1),
    "recovery.death": (5, 1),
    "tasks.steps": (20, 3),
    "tasks.one": (18, 3),
    "tasks.resume": (34, 6),
    "cli.start": (12, 2),
}
"""In full, and quickly."""


def seconds(suite: str, part: str, quick: bool) -> float:
    """What a part is planned to take; 0 for one that no run of everything has."""
    full, short = SECONDS.get(f"{suite}.{part}", (0.0, 0.0))
    return short if quick else full
