"""A linear model of the CPU of a bus: a cost for each message, each heartbeat of a process, and each agent in one.

It is fitted to observations by least squares of the relative errors, so that an idle process counts as much as a busy
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TERMS = ("message", "heartbeat", "agent")
"""A message sent, received and acknowledged; a heartbeat of a process; an agent in a heartbeat."""


@dataclass(frozen=True)
class Load:
    """Counts of a run."""

    messages: float
    heartbeats: float
    agents: float
    """Agents times heartbeats."""

    def counts(self) -> tuple[float, ...]:
        return self.messages, self.heartbeats, self.agents


@dataclass(frozen=True)
class Observation:
    """A run: its load and its CPU seconds, over all processes and the server."""

    title: str
    load: Load
    cpu: float


@dataclass(frozen=True)
class Costs:
    """CPU seconds for each term."""

    message: float
    heartbeat: float
    agent: float

    def predict(self, load: Load) -> float:
        """Return the CPU seconds of a load."""
        return sum(cost * count for cost, count in zip(self.each(), load.counts(), strict=True))

    def error(self, observed: Observation) -> float:
        """Return the relative error of the prediction: 0.1 if it is 10 % too high."""
        return self.predict(observed.load) / observed.cpu - 1

    def each(self) -> tuple[float, ...]:
        return self.message, self.heartbeat, self.agent


def fit(observations: Sequence[Observation]) -> Costs:
    """Return the costs with the smallest sum of squared relative errors; none is negative."""
    rows = [[count / one.cpu for count in one.load.counts()] for one in observations]
    kept = list(range(len(TERMS)))
    while True:
        found = _least_squares([[row[at] for at in kept] for row in rows])
        smallest = min(range(len(kept)), key=found.__getitem__)
        if found[smallest] >= 0:
            break
        # A cost that noise makes negative is too small to be seen.
        del kept[smallest]
    each = dict(zip(kept, found, strict=True))
    return Costs(*(each.get(at, 0.0) for at in range(len(TERMS))))


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float]:
    """Solve the normal equations for rows that should each add up to 1."""
    width = len(rows[0])
    matrix = [
        [sum(row[left] * row[right] for row in rows) for right in range(width)] + [sum(row[left] for row in rows)]
        for left in range(width)
    ]
    for pivot in range(width):
        best = max(range(pivot, width), key=lambda at: abs(matrix[at][pivot]))
        if matrix[best][pivot] == 0:
            raise ValueError("the observations do not determine every cost")
        matrix[pivot], matrix[best] = matrix[best], matrix[pivot]
        for other in (at for at in range(width) if at != pivot):
            factor = matrix[other][pivot] / matrix[pivot][pivot]
            matrix[other] = [one - factor * two for one, two in zip(matrix[other], matrix[pivot], strict=True)]
    return [matrix[at][width] / matrix[at][at] for at in range(width)]
