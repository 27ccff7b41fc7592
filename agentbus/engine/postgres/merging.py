"""Several questions as one statement: each round trip to a server takes longer than most of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from agentbus.engine.postgres.connection import Connection, server_queries
from agentbus.engine.postgres.statements import ask, statements
from agentbus.operations import Query, Rows

_parameter = re.compile(r"\$(\d+)")


class Merged(msgspec.Struct, frozen=True):
    """Several questions as one, and where in a row the answer of each is."""

    sql: str
    columns: tuple[slice, ...]


_merged: dict[tuple[str, ...], Merged] = {}
"""By the names of the questions."""


async def ask_several(connection: Connection, queries: Sequence[Query]) -> list[Rows]:
    """Run questions and fetch the rows of each: all in one statement, but for those that have to lock first."""
    answers: list[Rows] = [[] for _ in queries]
    together: list[int] = []
    for place, query in enumerate(queries):
        if len(statements()[query.name]) > 1:
            answers[place] = await ask(connection, query)
        else:
            together.append(place)
    if together:
        names = tuple(queries[place].name for place in together)
        merged = _merged.get(names) or await _merge(connection, names)
        parameters = [value for place in together for value in queries[place].parameters]
        for row in await connection.fetch(merged.sql, *parameters):
            number = row[0]
            answers[together[number]].append(row[merged.columns[number]])
    return answers


async def _merge(connection: Connection, names: tuple[str, ...]) -> Merged:
    """A row has the number of its question, what that answered, and nothing for the others. The server is asked once
    for the types."""
    queries = server_queries()
    questions: list[str] = []
    kinds: list[list[str]] = []
    width = 0
    for number, name in enumerate(names):
        (statement,) = statements()[name]
        prepared = await connection.prepare(statement.sql)
        kinds.append([attribute.type.name for attribute in prepared.get_attributes()])
        columns = ", ".join(f"c{place}" for place in range(len(kinds[-1])))
        sql = _shifted(statement.sql, width)
        questions.append(queries["server_question"].format(number=number, columns=columns, sql=sql))
        width += statement.width
    answers: list[str] = []
    slices: list[slice] = []
    start = 1
    for number, own in enumerate(kinds):
        values = [
            f"c{place}" if other == number else f"CAST(NULL AS {kind})"
            for other, columns_of in enumerate(kinds)
            for place, kind in enumerate(columns_of)
        ]
        answers.append(queries["server_answer"].format(number=number, values=", ".join(values)))
        slices.append(slice(start, start + len(own)))
        start += len(own)
    sql = queries["server_several"].format(questions=", ".join(questions), answers=" UNION ALL ".join(answers))
    merged = _merged[names] = Merged(sql, tuple(slices))
    return merged


def _shifted(sql: str, width: int) -> str:
    """With its parameters after those of the questions before it."""
    return _parameter.sub(lambda match: f"${int(match[1]) + width}", sql)
