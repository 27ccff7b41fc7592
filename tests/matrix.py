"""Run the conformance suite with the oldest and the newest versions of the dependencies (``make test-matrix``).

Needs only the standard library. Each set of versions has a virtual environment of its own under ``build/matrix``. The
oldest versions are the lower bounds in pyproject.toml, so that a bound has to name a version that exists and works.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("sniffio",)
"""Installed with the newest versions only: anyio behaves differently where it is, and many users have it."""


def requirements() -> list[str]:
    """Return what the package requires: the core dependencies and the driver of the server."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["postgres"]]


def oldest(requirement: str) -> str:
    """Return the requirement of the lower bound alone.

    >>> oldest("anyio>=4.12,<5")
    'anyio==4.12'
    """
    found = re.fullmatch(r"([\w.-]+)[^;]*?>=\s*([\w.]+)[^;]*", requirement)
    if found is None:
        raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound, as in 'anyio>=4.12,<5'")
    return f"{found[1]}=={found[2]}"


SETS = {
    "oldest": [oldest(requirement) for requirement in requirements()],
    "newest": ["--upgrade", "--upgrade-strategy", "eager", *requirements(), *BESIDE],
}


def prepare(name: str) -> Path:
    """Make the environment of a set of versions, or bring it up to date; return its interpreter."""
    place = ROOT / "build" / "matrix" / f"{sys.version_info.major}.{sys.version_info.minor}-{name}"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True, symlinks=True)
    subprocess.run([python, "-m", "pip", "install", "-qq", "-e", ".[test]", *SETS[name]], cwd=ROOT, check=True)
    return python


def versions(python: Path) -> str:
    """Return the versions of the dependencies that are installed there."""
    names = [re.match(r"[\w.-]+", requirement)[0] for requirement in (*requirements(), *BESIDE)]  # type: ignore[index]
    lines = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout.split()
    return ", ".join(line for line in lines if line.partition("==")[0] in names)


def main(arguments: list[str]) -> int:
    """Run the suite with each set, whatever becomes of the other; the arguments are for pytest."""
    failed: list[str] = []
    for name in SETS:
        python = prepare(name)
        print(f"== Python {sys.version.split()[0]}, {name}: {versions(python)}", flush=True)
        # The tests that need what is installed beside the newest versions fail elsewhere, unless they are told.
        told = {} if name == "newest" else {"AGENTBUS_TEST_WITHOUT": " ".join(BESIDE)}
        command = [str(python), "-m", "pytest", "tests/api", *arguments]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, **told}, check=False).returncode:
            failed.append(name)
    print("== " + (f"failed with the {' and the '.join(failed)} versions" if failed else "passed with both"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
