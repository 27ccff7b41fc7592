"""Sizes and results of the fault tests: a pytest plugin.

``make test`` runs each of them small, ``--full`` in the size that the table of ``tests/faults/README.md`` promises,
``--long`` ten times as long with new seeds. What a test marked ``fault(row)`` reports to the fixture
``figure`` is printed with it, gathered at the end of the run, and written into that table by ``--figures FILE``: also
that of tests that failed, which is marked.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

from tests.support.examples import examples

T = TypeVar("T")
Figure = Callable[..., None]
Properties = Sequence[tuple[str, object]]
_FIGURE = "figure"
_ROW = "row"


class Scale:
    """The size of the fault tests in this run, and the seed of their chance."""

    def __init__(self, config: pytest.Config) -> None:
        self._long: bool = config.getoption("long")
        self.full: bool = self._long or config.getoption("full")
        self._seed: int | None = config.getoption("seed")

    def __call__(self, small: T, full: T, long: T | None = None) -> T:
        """A number for each kind of run."""
        return (full if long is None or not self._long else long) if self.full else small

    def seed(self, usual: int) -> int:
        """The seed of a test: always the same, but in a long run."""
        return usual if self._seed is None else self._seed + usual


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--full", action="store_true", help="fault tests in their whole size (make faults)")
    group.addoption("--long", action="store_true", help="ten times as long, with fresh seeds")
    group.addoption("--seed", type=int, help="the seed that a long run printed, to have the same again")
    group.addoption("--row", type=int, metavar="N", help="only the fault tests of this row of the table")
    group.addoption("--figures", metavar="FILE", help="write what was measured into the table of this file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(row): shows a row of the table in tests/faults/README.md")
    # Chosen once, before the workers of xdist get their copy of the options.
    if config.getoption("long") and config.getoption("seed") is None:
        config.option.seed = random.SystemRandom().randrange(10**9)
    scale = Scale(config)
    examples.full = scale.full
    # Read when the tests are imported. Without derandomize, Hypothesis prints what repeats a failure.
    hypothesis.settings.register_profile(
        "faults", max_examples=scale(40, 2000, 20_000), derandomize=not config.getoption("long"), print_blob=True
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("seed")
    return None if seed is None else f"faults: --long --seed {seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only what is asked for; and what takes minutes in its whole size may take them."""
    row = config.getoption("row")
    if row is not None:
        others = [item for item in items if not (mark := item.get_closest_marker("fault")) or mark.args[0] != row]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    if Scale(config).full:
        for item in items:
            if item.get_closest_marker("fault") is not None:
                item.add_marker(pytest.mark.timeout(3600), append=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whatever becomes of the test, its report says which row it belongs to."""
    marker = item.get_closest_marker("fault")
    if marker is not None:
        item.user_properties.append((_ROW, marker.args[0]))


@pytest.fixture
def scale(pytestconfig: pytest.Config) -> Scale:
    """The size of this run."""
    return Scale(pytestconfig)


@pytest.fixture
def figure(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Figure:
    """Say what was measured: ``figure(faults=200, acknowledged=5000, lost=0, duplicated=0, …)``."""
    marker = request.node.get_closest_marker("fault")
    assert marker is not None, "only a test marked fault(row) has figures"

    def tell(note: str = "", **counts: Any) -> None:
        words = [f"{_number(count)} {name.replace('_', ' ')}" for name, count in counts.items()]
        text = ", ".join([*words, note] if note else words)
        print(f"row {marker.args[0]}: {text}")
        record_property(_FIGURE, f"{marker.args[0]}|{text}")

    return tell


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    figures: dict[int, list[str]] = {}
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    # Those of the teardown: some can say only then what they came to.
    for report in terminalreporter.stats.get("", []):
        if report.nodeid in passed and report.when == "teardown":
            for row, text in _told(report.user_properties):
                figures.setdefault(row, []).append(text)
    for report in (*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])):
        if not isinstance(report, pytest.TestReport):
            # A module that could not be imported.
            continue
        for row, text in not_held(report.user_properties, report.location[2]):
            figures.setdefault(row, []).append(text)
    if not figures or not (Scale(config).full or config.getoption("figures")):
        return
    terminalreporter.section("what the faults came to")
    for row, texts in sorted(figures.items()):
        for text in texts:
            terminalreporter.write_line(f"{row:>3}  {text}")
    if config.getoption("figures"):
        write(Path(config.getoption("figures")), figures)


def write(file: Path, figures: dict[int, list[str]]) -> None:
    """Put what was measured into the last cell of each row that was measured; the others stay as they are."""
    lines = file.read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines):
        found = re.match(r"\| (\d+) \|", line)
        if found is not None and int(found[1]) in figures:
            cells = line.split(" | ")
            told = "; ".join(dict.fromkeys(figures[int(found[1])])).replace("|", "/")
            lines[place] = " | ".join([*cells[:-1], f"{told} |"])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def not_held(properties: Properties, test: str) -> Iterator[tuple[int, str]]:
    """Yield what a failed test had measured, or at least its name: the table must not look as if it had passed."""
    told = list(_told(properties))
    for name, value in properties:
        if name == _ROW:
            yield int(str(value)), "; ".join(f"**not held: {text}**" for text in [text for _, text in told] or [test])


def _told(properties: Properties) -> Iterator[tuple[int, str]]:
    for name, value in properties:
        if name == _FIGURE:
            row, _, text = str(value).partition("|")
            yield int(row), text


def _number(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else str(count)
