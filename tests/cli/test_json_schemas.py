"""``schemas/json/``: of every public record and built-in message type, up to date, valid, and true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from jsonschema import Draft202012Validator

import agentbus
from agentbus import Bus
from agentbus.cli import json_schemas
from agentbus.core.builtin_types import MESSAGE_TYPES
from agentbus.core.jsonschema import compiled
from agentbus.engine.sqlite.connection import migrations
from tests.support.cases import each

FILES = sorted((Path(__file__).resolve().parents[2] / "schemas" / "json").rglob("*.json"))
each_file = each("file", FILES)


def content(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_files_are_up_to_date() -> None:
    assert json_schemas.out_of_date(json_schemas.HERE) == [], "run `make schemas`"


def test_there_is_a_schema_of_every_public_record_and_built_in_message_type() -> None:
    exported = {
        name
        for module in (agentbus, agentbus.records)
        for name in module.__all__
        if isinstance(value := getattr(module, name), type) and issubclass(value, msgspec.Struct)
    }
    assert {"AgentRecord", "MessageRecord", "Page", "QueueDepth", "Receipt", "Stats", "TypeRecord"} <= exported
    assert {file.stem for file in FILES if file.parent.name == "records"} == exported
    assert {file.stem for file in FILES if file.parent.name == "messages"} == set(MESSAGE_TYPES)


@each_file
def test_a_schema_is_valid_by_the_official_meta_schema(file: Path) -> None:
    schema = content(file)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$schema"]
    Draft202012Validator.check_schema(schema)


def test_the_meta_schema_would_find_a_fault() -> None:
    with pytest.raises(jsonschema.SchemaError):
        Draft202012Validator.check_schema({"type": "text"})


@each_file
def test_a_schema_says_what_it_is(file: Path) -> None:
    schema = content(file)
    kind = file.parent.name.removesuffix("s")
    assert schema["$id"] == f"urn:agentbus:{kind}:{file.stem}"
    assert schema["title"] == file.stem
    assert re.fullmatch(r"[A-Z].*\.", schema["description"], re.DOTALL)
    assert ">>>" not in file.read_text(encoding="utf-8")


@each_file
def test_a_schema_has_sorted_keys_and_its_references_lead_somewhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    schema = content(file)
    assert text == json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    for name in re.findall(r'"\$ref": "([^"]*)"', text):
        assert name.removeprefix("#/$defs/") in schema["$defs"], name


@each_file
def test_our_own_validator_knows_all_that_our_schemas_use(file: Path) -> None:
    compiled(file.read_text(encoding="utf-8"))


@each("name", MESSAGE_TYPES)
def test_a_built_in_message_type_refuses_nothing_and_has_an_example_of_its_usual_fields(name: str) -> None:
    schema = content(json_schemas.HERE / "messages" / f"{name}.json")
    validator = Draft202012Validator(schema)
    example = MESSAGE_TYPES[name].example
    odd = {field: [None] for field in schema["properties"]}
    payloads: list[Any] = [None, True, 1, "text", [], {}, {"phase": "design"}, odd, example]
    assert all(validator.is_valid(payload) for payload in payloads)
    assert set(example) <= set(schema["properties"])


def test_the_built_in_message_types_are_the_same_in_the_tables() -> None:
    rows = re.findall(r"\('message', '([^']+)', 1, '([^']+)', 0\)", "".join(migrations().values()))
    assert dict(rows) == {name: message.description for name, message in MESSAGE_TYPES.items()}


async def test_real_records_fit_their_schemas(bus: Bus) -> None:
    a = await bus.register("a", type="worker", capabilities=["python"], metadata={"x": [1]}, estimate=1.5, patience=60)
    await bus.define("plan", schema={"type": "object"})
    found: list[msgspec.Struct] = [
        await a.send("a", "note", {"x": 1}, delay=5),
        await a.send("a", "plan", {}),
        await bus.stats(),
        await bus.messages.list(),
        *(await bus.messages.list()).items,
        *(await bus.agents.list()).items,
        *await bus.types(),
        agentbus.pool("p"),
        agentbus.SystemClock().now(),
    ]
    found += (await bus.stats()).queues
    for record in found:
        file = json_schemas.HERE / "records" / f"{type(record).__name__}.json"
        Draft202012Validator(content(file)).validate(msgspec.to_builtins(record))


# The command


def test_writing_makes_the_files_and_removes_what_is_not_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "json"
    assert json_schemas.main([str(directory)]) == 0
    assert {file.name for file in directory.rglob("*.json")} == {file.name for file in FILES}
    assert json_schemas.main(["--check", str(directory)]) == 0
    (directory / "records" / "Stats.json").write_text("{}")
    (directory / "records" / "Old.json").write_text("{}")
    (directory / "messages" / "note.json").unlink()
    capsys.readouterr()
    assert json_schemas.main(["--check", str(directory)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "out of date: messages/note.json", "out of date: records/Old.json", "out of date: records/Stats.json",
    ]  # fmt: skip
    assert json_schemas.main([str(directory)]) == 0
    assert json_schemas.out_of_date(directory) == []
    assert not (directory / "records" / "Old.json").exists()


def test_writing_elsewhere_than_beside_the_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        json_schemas.main([str(tmp_path / "nowhere" / "json")])
    assert ended.value.code == 2
