"""The types of the public API: mypy accepts correct calls, infers their results, and rejects wrong ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("typed_calls.txt")
MARK = re.compile(r"# E: ([\w, -]+)$")
ERROR = re.compile(r"\.py:(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)


@pytest.mark.slow
def test_mypy_reports_the_wrong_calls_and_no_others(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    text = SOURCE.read_text(encoding="utf-8")
    calls = tmp_path / "typed_calls.py"
    calls.write_text(text, encoding="utf-8")
    # With the settings and the cache of the whole check, so that usually only this file is analysed.
    command = [sys.executable, "-m", "mypy", "--no-pretty", str(calls)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    found: dict[int, set[str]] = {}
    for number, code in ERROR.findall(ended.stdout):
        found.setdefault(int(number), set()).add(code)
    lines = text.splitlines()
    marked = {
        number: set(mark[1].split(", "))
        for number, line in enumerate(lines, 1)
        if not line.startswith("A wrong use") and (mark := MARK.search(line))
    }
    assert len(marked) > 40
    assert {number: (lines[number - 1], found[number]) for number in sorted(found)} == {
        number: (lines[number - 1], marked[number]) for number in sorted(marked)
    }, ended.stdout + ended.stderr
