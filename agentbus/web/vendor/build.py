"""Rebuild ``static/vendor.js`` and its licences from the npm versions that ``package-lock.json`` pins.

Needs npm. Run it after a change of ``package.json`` (then ``npm install --package-lock-only`` first) or ``entry.js``:

    python agentbus/web/vendor/build.py

It prints the SHA-256 of the bundle, which ``SHA256`` beside it records and a test compares.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATIC = HERE.parent / "static"
LICENSES = ("preact", "@preact/signals", "@preact/signals-core", "htm")
FLAGS = ("--bundle", "--format=esm", "--minify", "--target=es2022", "--legal-comments=none", "--charset=utf8")


def build(work: Path) -> tuple[bytes, str]:
    """Return the bundle and the licences of what is in it."""
    for name in ("package.json", "package-lock.json", "entry.js"):
        shutil.copy(HERE / name, work)
    npm = shutil.which("npm") or "npm"
    subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=work, check=True)
    modules = work / "node_modules"
    esbuild = modules / ".bin" / "esbuild"
    subprocess.run([str(esbuild), "entry.js", *FLAGS, "--outfile=vendor.js"], cwd=work, check=True)
    parts: list[str] = []
    for name in LICENSES:
        folder = modules / name
        version = json.loads((folder / "package.json").read_text())["version"]
        text = next(folder.glob("LICENSE*")).read_text().strip()
        parts.append(f"{name} {version}\n{'=' * 72}\n{unwrapped(text)}\n")
    return (work / "vendor.js").read_bytes(), "\n".join(parts)


def unwrapped(text: str) -> str:
    """Return a licence with one line for each paragraph: the dashboard has to be small."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        bundle, licenses = build(Path(folder))
    header = b"/* preact, @preact/signals, htm. Licences: vendor-licenses.txt. Made by vendor/build.py. */\n"
    content = header + bundle
    (STATIC / "vendor.js").write_bytes(content)
    (STATIC / "vendor-licenses.txt").write_text(licenses)
    digest = hashlib.sha256(content).hexdigest()
    (HERE / "SHA256").write_text(f"{digest}  vendor.js\n")
    sys.stdout.write(f"{digest}  {len(content)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
