"""The wheel works alone: built, installed into an empty environment, and used outside the checkout."""

import importlib.metadata
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

# Runs in the new environment, which has nothing but the wheel and what it asked for.
SCRIPT = """
import asyncio
import importlib.metadata
import sys
from pathlib import Path

import agentbus

CORE = {"aiosqlite", "anyio", "msgspec", "tenacity"}
NEEDED_BY_CORE = {"idna", "typing-extensions"}  # by anyio; the second only before Python 3.13

package = Path(agentbus.__file__).resolve().parent
assert package.is_relative_to(Path(sys.prefix).resolve()), package
assert (package / "py.typed").is_file(), "py.typed is missing"
for name in ("records/AgentRecord", "messages/note"):
    assert (package / "_schemas" / "json" / f"{name}.json").is_file(), f"the schema of {name} is missing"

for file in ("_schemas/postgres/0001_initial.sql", "engine/sql/common/messages.sql", "engine/sql/postgres/server.sql"):
    assert (package / file).is_file(), f"{file} is missing"
try:
    agentbus.connect("postgresql://host/database")
except agentbus.errors.InvalidUrl as error:
    assert error.fix.startswith("python -m pip install 'asyncpg"), error
else:
    raise AssertionError("there is no driver here")

installed = {
    distribution.metadata["Name"].lower().replace("_", "-")
    for distribution in importlib.metadata.distributions()
}
assert installed - NEEDED_BY_CORE == {"agentbus"} | CORE, installed


async def main(path: str) -> None:
    async with agentbus.connect(path) as bus:
        async with bus.agent("a", type="worker") as a, bus.agent("b", type="worker") as b:
            await a.send("b", "note", {"x": 1})
            message = await b.receive(timeout=5)
            assert message is not None, "nothing arrived"
            assert message.payload == {"x": 1}, message.payload
            await message.ack()


asyncio.run(main(sys.argv[1]))
"""


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command to its end; if it fails, fail with what it said."""
    # What PYTHONPATH offers would count as installed already.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def requirements(distribution: importlib.metadata.Distribution) -> list[importlib.metadata.Distribution]:
    """Return the distributions of this environment that another requires without extras, directly or not."""
    found: dict[str, importlib.metadata.Distribution] = {}
    pending = [distribution]
    while pending:
        for text in pending.pop().requires or []:
            requirement = Requirement(text)
            if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
                continue
            needed = importlib.metadata.distribution(requirement.name)
            assert requirement.specifier.contains(needed.version, prereleases=True), f"{text}: {needed.version}"
            found[requirement.name] = needed
            pending.append(needed)
    return list(found.values())


def link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    """Make an installed distribution importable in another environment, as pip would install it there."""
    top = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in {"..", "__pycache__"}}
    for name in top:
        (packages / name).symlink_to(Path(str(distribution.locate_file(name))))


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    # Commands run in a directory of their own: in the checkout, Python would import the checkout.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    dist = tmp_path / "dist"
    # The build backend is a development dependency: no environment is made for it and nothing is downloaded.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, ROOT, cwd=elsewhere)
    (wheel,) = dist.glob("*.whl")

    # No pip in there, so that every distribution found is one the wheel asked for.
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    # --prefix instead of --python, which starts pip twice.
    install = (sys.executable, "-m", "pip", "install", "--prefix", environment, "--ignore-installed")
    run(*install, "--no-deps", "--no-index", "--no-compile", wheel, cwd=elsewhere)
    (packages,) = environment.glob("lib/python*/site-packages")
    (distribution,) = importlib.metadata.distributions(path=[str(packages)])
    for needed in requirements(distribution):
        link(needed, packages)

    script = elsewhere / "use_the_bus.py"
    script.write_text(SCRIPT, encoding="utf-8")
    # -I: no user site and no variable of ours reaches the script.
    run(python, "-I", script, tmp_path / "bus", cwd=elsewhere)
