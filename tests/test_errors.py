"""Errors: a tree drawn in the module, a stable code each, facts as attributes, and a fix where there is one."""

from __future__ import annotations

import copy
import pickle
import re
import string
from collections.abc import Callable, Iterator

import pytest

from agentbus import errors
from agentbus.errors import AgentBusError


def below(kind: type[AgentBusError]) -> Iterator[type[AgentBusError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith(errors.__name__):
            yield from below(child)


EVERY = list(below(AgentBusError))
each = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)


def fields(kind: type[AgentBusError]) -> set[str]:
    """The facts that the texts of an error speak of."""
    texts = kind.text + (kind.fix_text or "")
    return {name for _, name, _, _ in string.Formatter().parse(texts) if name}


def example(kind: type[AgentBusError]) -> AgentBusError:
    return kind(**{name: f"some {name}" for name in fields(kind)}, extra=[1, {"deep": 2}])


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """The tree of the module's docstring: each class with its parent and the built-in error it also is."""
    assert errors.__doc__ is not None
    found: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?: \((\w+)\))?", line)
        if match is None:
            continue
        branch, name, builtin = match.groups()
        depth = len(branch) // 4
        path = [*path[:depth], name]
        found[name] = (path[depth - 1] if depth else None, builtin)
    return found


def test_the_tree_in_the_docstring_lists_exactly_the_classes() -> None:
    assert set(drawn()) == {kind.__name__ for kind in EVERY}


@each
def test_the_tree_in_the_docstring_shows_the_true_parents(kind: type[AgentBusError]) -> None:
    parent, builtin = drawn()[kind.__name__]
    bases = [base.__name__ for base in kind.__bases__]
    expected = [name for name in (parent or "Exception", builtin) if name]
    assert bases == expected


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [vars(kind).get("code") for kind in EVERY]
    assert None not in codes
    assert len(set(codes)) == len(codes)


@each
def test_the_code_is_the_name_in_snake_case(kind: type[AgentBusError]) -> None:
    # A code is stable: it may be matched by programs. Renaming a class must not change it unnoticed.
    name = kind.__name__.replace("SQLite", "Sqlite").replace("AgentBusError", "Error")
    assert kind.code == re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower().replace("not_adatabase", "not_a_database")


@each
def test_every_class_says_what_it_means(kind: type[AgentBusError]) -> None:
    assert kind.__doc__
    assert kind.__doc__.strip().endswith((".", "facts are put into."))


@each
def test_facts_can_be_read_as_attributes(kind: type[AgentBusError]) -> None:
    error = example(kind)
    for name, value in error.facts.items():
        assert getattr(error, name) == value


@each
def test_a_fact_never_hides_a_part_of_the_error(kind: type[AgentBusError]) -> None:
    # Attributes of the class win over facts: such a fact could not be read.
    assert not {name for name in fields(kind) if hasattr(kind, name)}


@each
def test_the_message_has_every_fact_and_the_fix(kind: type[AgentBusError]) -> None:
    error = example(kind)
    for name in fields(kind):
        assert f"some {name}" in str(error)
    if kind.fix_text is None:
        assert error.fix is None
    else:
        assert error.fix is not None
        assert str(error).endswith(f"({error.fix})")


@each
def test_an_error_without_facts_still_has_a_message(kind: type[AgentBusError]) -> None:
    assert str(kind())


@each
def test_a_fix_with_a_gap_in_it_is_none(kind: type[AgentBusError]) -> None:
    assert "?" not in (kind().fix or "")
    assert not str(kind()).endswith("(?)")


def pickled(error: AgentBusError) -> object:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@each
@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_and_copying(
    kind: type[AgentBusError], copied: Callable[[AgentBusError], object]
) -> None:
    error = example(kind)
    again = copied(error)
    assert isinstance(again, AgentBusError)
    assert type(again) is kind
    assert again.facts == error.facts
    assert str(again) == str(error)
    assert again.fix == error.fix


def test_a_copy_has_facts_of_its_own() -> None:
    error = errors.LeaseLost(message_id="m-7")
    copy.copy(error).facts["message_id"] = "m-8"
    assert error.message_id == "m-7"


def test_what_is_no_fact_is_no_attribute() -> None:
    error = errors.LeaseLost(message_id="m-7")
    with pytest.raises(AttributeError):
        _ = error.holder
    assert not hasattr(error, "nothing")


def test_a_missing_fact_does_not_break_the_message() -> None:
    assert "?" in str(errors.LeaseLost(message_id="m-7"))


def test_braces_in_a_fact_are_only_text() -> None:
    assert "{holder}" in str(errors.UnknownMessage(message_id="{holder}"))


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidPayload, ValueError),
        (errors.UnknownRecipient, LookupError),
        (errors.RequestTimedOut, TimeoutError),
        (errors.BusClosed, RuntimeError),
    ],
)
def test_built_in_handlers_catch_them_too(kind: type[AgentBusError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise example(kind)


def test_only_what_may_work_next_time_is_transient() -> None:
    assert {kind.__name__ for kind in EVERY if kind.transient} == {
        "LockTimeout", "LockedElsewhere", "DiskFull", "LogNotSynced", "OutcomeUnknown", "ServerUnreachable",
        "StatementTimeout", "TooManyFiles",
        "TooManyConnections", "QuotaExceeded", "QueueFull", "SendingTooFast", "BusFull",
    }  # fmt: skip
