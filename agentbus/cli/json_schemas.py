"""The JSON Schemas in ``schemas/json/``: one for each public record and built-in message type.

    python -m agentbus.cli.json_schemas [--check] [directory]

They are generated from the code, for programs in other languages. ``--check`` only reports those that are out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

import agentbus
from agentbus.core.builtin_types import MESSAGE_TYPES, BuiltInMessage

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HERE = Path(agentbus.__file__).resolve().parents[1] / "schemas" / "json"


def records() -> list[type[msgspec.Struct]]:
    """Return the public records: the Structs that ``agentbus`` and ``agentbus.records`` export."""
    exported = {getattr(module, name) for module in (agentbus, agentbus.records) for name in module.__all__}
    return [value for value in exported if isinstance(value, type) and issubclass(value, msgspec.Struct)]


def record_schema(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a record, with the record itself at the top."""
    whole = msgspec.json.schema(record)
    others = {name: _described(schema) for name, schema in whole["$defs"].items()}
    name = whole["$ref"].removeprefix("#/$defs/")
    top = others.pop(name)
    identity = {"$schema": DIALECT, "$id": f"urn:agentbus:record:{name}"}
    return {**identity, **top, **({"$defs": others} if others else {})}


def message_schema(name: str, message: BuiltInMessage) -> dict[str, Any]:
    """Return the schema of a built-in message type. It only describes: built-in types accept any payload."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:agentbus:message:{name}",
        "title": name,
        "description": f"{message.description.capitalize()}. Any JSON will do; these are the usual fields.",
        "properties": {field: {"description": words} for field, words in message.fields.items()},
        "examples": [message.example],
    }


def documents() -> dict[str, str]:
    """Return the content of every file, by its path below the directory."""
    schemas = {f"records/{record.__name__}.json": record_schema(record) for record in records()}
    for name, message in MESSAGE_TYPES.items():
        schemas[f"messages/{name}.json"] = message_schema(name, message)
    return {
        path: json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for path, schema in sorted(schemas.items())
    }


def out_of_date(directory: Path) -> list[str]:
    """Return the files that are missing, outdated or obsolete."""
    wanted = documents()
    there = {str(file.relative_to(directory)): file.read_text(encoding="utf-8") for file in directory.glob("*/*.json")}
    return sorted(path for path in wanted.keys() | there.keys() if wanted.get(path) != there.get(path))


def write(directory: Path) -> list[str]:
    """Update the files. Return those that changed."""
    changed = out_of_date(directory)
    wanted = documents()
    for path in changed:
        file = directory / path
        if path in wanted:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[path], encoding="utf-8")
        else:
            file.unlink()
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the JSON Schemas of records and built-in message types.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.add_argument("directory", nargs="?", type=Path, default=HERE, help="schemas/json of the checkout by default")
    options = parser.parse_args(arguments)
    directory: Path = options.directory
    if not directory.parent.is_dir():
        parser.error(f"no directory {directory.parent}")
    changed = out_of_date(directory) if options.check else write(directory)
    for path in changed:
        print(f"{'out of date' if options.check else 'written'}: {path}")
    return 1 if options.check and changed else 0


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the Python examples at the end of a docstring."""
    if "description" not in schema:
        return schema
    return {**schema, "description": cleandoc(schema["description"].partition(">>>")[0]).strip()}


if __name__ == "__main__":
    sys.exit(main())
