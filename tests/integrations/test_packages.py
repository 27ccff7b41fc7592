"""Check that every adapter has an extra, a page, an example and tests, with a version that its extra accepts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = (ROOT / "agentbus" / "integrations").glob("*")
ADAPTERS = sorted(file.stem for file in FILES if (file.suffix == ".py" or file.is_dir()) and file.stem[0] != "_")
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def extra(adapter: str) -> str:
    """Return the name of the extra of a module: ``pydantic_ai`` has ``pydantic-ai``."""
    return canonicalize_name(adapter)


def pinned() -> dict[str, str]:
    """Return the versions that ``make integrations`` installs, by package."""
    text = (ROOT / "tests" / "integrations" / "packages.mk").read_text(encoding="utf-8")
    return {canonicalize_name(name): version for name, version in re.findall(r"([\w.-]+)(?:\[.*\])?==([\w.]+)", text)}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_complete(adapter: str) -> None:
    index = (ROOT / "docs" / "integrations" / "README.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "integrations" / f"{extra(adapter)}.md").exists()
    assert f"({extra(adapter)}.md)" in index
    assert list((ROOT / "examples").glob(f"{adapter}_*.py"))
    assert list((ROOT / "tests" / "integrations").glob(f"test_{adapter}*.py"))
    assert extra(adapter) in EXTRAS


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_tested_with_a_version_that_its_extra_accepts(adapter: str) -> None:
    versions = pinned()
    framework = [Requirement(text) for text in EXTRAS[extra(adapter)]]
    found = [need for need in framework if canonicalize_name(need.name) in versions]
    assert found
    assert [need for need in found if versions[canonicalize_name(need.name)] not in need.specifier] == []


def test_every_package_has_one_exact_version() -> None:
    text = (ROOT / "tests" / "integrations" / "packages.mk").read_text(encoding="utf-8")
    words = re.sub(r"#.*|INTEGRATION_PACKAGES :=|\\", "", text).split()
    assert len(pinned()) == len(words)
    assert [*pinned()] == sorted(pinned())
