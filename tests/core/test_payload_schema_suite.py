"""The official JSON Schema test suite, draft 2020-12 (MIT licence, in the data file): no case is judged wrongly."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agentbus.core.jsonschema import Schema, compiled, schema_text
from agentbus.errors import InvalidSchema

SUITE = json.loads((Path(__file__).parent / "json_schema_suite.json").read_text(encoding="utf-8"))


def definition(schema: Any) -> Schema:
    # The schema of a type is an object.
    return compiled(schema_text({"allOf": [schema]} if isinstance(schema, bool) else schema, "example"))


def test_the_official_suite_is_judged_right() -> None:
    wrong = []
    refused: Counter[str] = Counter()
    judged = 0
    for group in SUITE["groups"]:
        try:
            schema = definition(group["schema"])
        except InvalidSchema:
            refused[group["file"]] += len(group["tests"])
            continue
        for description, data, valid in group["tests"]:
            judged += 1
            if (schema.violation(data) is None) != valid:
                wrong.append((group["file"], group["description"], description))
    assert wrong == []
    # Refused at definition: references to other documents, dynamic references, an $id below the root, other dialects.
    assert (judged, dict(refused)) == (
        1141,
        {"anchor": 6, "defs": 2, "dynamicRef": 42, "ref": 26, "refRemote": 31, "unevaluatedItems": 2,
         "unevaluatedProperties": 2, "vocabulary": 5},
    )  # fmt: skip
