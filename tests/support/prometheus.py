"""Reads metrics as Prometheus does: with the parsers of prometheus_client, and with promtool where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def parsed(text: str, format: str = "prometheus") -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples by name and labels. A sample that occurs twice, or a text that is not valid, is an error."""
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
    from prometheus_client.parser import text_string_to_metric_families as prometheus

    families: Any = (open_metrics if format == "openmetrics" else prometheus)(text)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in families:
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), (sample.name, labels)
            found[sample.name][labels] = sample.value
    return found


def value(found: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str, **labels: str) -> float:
    """Return one sample."""
    return found[name][tuple(sorted(labels.items()))]


def promtool() -> str:
    """Return the path of promtool, or skip the test."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed: it is in the package prometheus of Debian")
    return path


def check_metrics(text: str) -> None:
    """Let promtool read and lint the text."""
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=text.encode(), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done.stdout + done.stderr


def check_rules(file: Path) -> str:
    """Let promtool read a file of rules; return its output."""
    done = subprocess.run([promtool(), "check", "rules", file], capture_output=True, timeout=30, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
