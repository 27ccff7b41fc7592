"""Share fixtures among the tests of all adapters; the engines and buses are those of ``tests/conftest.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Show the warnings of the frameworks; those about the code of this project are errors, as everywhere."""
    others = pytest.mark.filterwarnings("default:::(?!agentbus|tests|examples|__main__)")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(others)
