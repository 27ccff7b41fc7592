"""The table of the fault tests: a measured figure replaces the last cell of its row, and nothing else."""

from pathlib import Path

import pytest

from tests.support.figures import Scale, not_held, write

TABLE = """# Faults

| # | fault | measured |
|---|---|---|
| 1 | kill -9 | – |
| 12 | clocks | as it was |

after it
"""


def test_a_measured_figure_is_written_into_its_row(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(TABLE, encoding="utf-8")
    write(file, {1: ["200 kills, 0 lost", "a | b", "200 kills, 0 lost"], 99: ["no such row"]})
    assert file.read_text(encoding="utf-8") == TABLE.replace(
        "| 1 | kill -9 | – |", "| 1 | kill -9 | 200 kills, 0 lost; a / b |"
    )


def test_a_failed_test_is_marked_with_its_figure_or_its_name() -> None:
    measured = [("row", 4), ("figure", "4|64 writers, longest wait 2 s")]
    assert list(not_held(measured, "test_writers")) == [(4, "**not held: 64 writers, longest wait 2 s**")]
    assert list(not_held([("row", 4)], "test_writers")) == [(4, "**not held: test_writers**")]
    assert list(not_held([], "test_of_no_row")) == []


def test_the_table_has_every_row_once() -> None:
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    numbers = [int(line.split(" ")[1]) for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert numbers == list(range(1, 29))


def test_a_run_has_one_size(scale: Scale, pytestconfig: pytest.Config) -> None:
    long, full = pytestconfig.getoption("long"), pytestconfig.getoption("full")
    assert scale("small", "full", "long") == ("long" if long else "full" if full else "small")
    assert scale("small", "full") == ("full" if full or long else "small")
    assert long or scale.seed(7) == 7
