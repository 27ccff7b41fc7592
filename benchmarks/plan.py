"""The time budget of a run by part: about ten minutes in total, or one with ``--quick``.

Seconds on two idle cores with all contestants installed. The progress bar uses them as estimates. The total is fixed:
a longer part needs a shorter one elsewhere. ``results.json`` has the actual durations.
"""

from __future__ import annotations

MINUTES = (10.0, 1.0)
"""The total of a full and of a quick run."""

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
"""Of a full and of a quick run; 0 for parts that a quick run leaves out."""


def seconds(suite: str, part: str, quick: bool) -> float:
    """Return the planned duration of a part; 0 for one outside the run of all suites."""
    full, short = SECONDS.get(f"{suite}.{part}", (0.0, 0.0))
    return short if quick else full
