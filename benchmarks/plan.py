"""How long a run may take, part by part: about ten minutes for everything, one if it is to be quick.

Seconds on two idle cores, with everyone there. The progress estimates from them; whoever makes a part longer has to
find the time in another. ``results.json`` says what each part took.
"""

from __future__ import annotations

MINUTES = (10.0, 1.0)
"""For everything in full, and quickly."""

SECONDS: dict[str, tuple[float, float]] = {
    "queue.one": (48, 4),
    "queue.tasks": (36, 4),
    "queue.tasks-fused": (8, 1),
    "queue.batches": (28, 2),
    "queue.processes": (55, 3),
    "queue.idle": (80, 7),
    "queue.growth": (60, 4),
    "queue.beats": (40, 6),
    "writers.1": (5, 1),
    "writers.2": (5, 1),
    "writers.4": (5, 2),
    "writers.8": (6, 2),
    "writers.16": (8, 0),
    "writers.32": (12, 0),
    "writers.64": (16, 0),
    "state.get": (9, 1.5),
    "state.get-tasks": (9, 1.5),
    "state.set": (9, 1.5),
    "state.set-tasks": (10, 1.5),
    "state.cas": (10, 1.5),
    "state.cas-tasks": (11, 1.5),
    "state.checkpoints": (7, 0.5),
    "registry.100": (6, 1),
    "registry.1000": (8, 2),
    "registry.10000": (18, 0),
    "recovery.100": (5, 0.5),
    "recovery.1000": (6, 1),
    "recovery.1000-open": (3, 1),
    "recovery.10000": (11, 0),
    "recovery.sweep": (2, 1),
    "recovery.death": (1, 0.5),
    "tasks.steps": (20, 4),
    "tasks.one": (15, 2),
    "tasks.resume": (36, 3),
    "cli.start": (9, 2),
}
"""In full, and quickly; 0 for what is too large to be quick."""


def seconds(suite: str, part: str, quick: bool) -> float:
    """What a part is planned to take; 0 for one that no run of everything has."""
    full, short = SECONDS.get(f"{suite}.{part}", (0.0, 0.0))
    return short if quick else full
