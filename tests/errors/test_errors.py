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


def fields(kind: type[AgentBusError]) -> set[str]:
    """The facts that the texts of an error speak of."""
    texts = kind.text + (kind.fix_text or "") + (kind.shell_fix_text or "")
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


def test_the_tree_in_the_docstring_shows_the_true_parents() -> None:
    tree = drawn()
    for kind in EVERY:
        parent, builtin = tree[kind.__name__]
        assert [base.__name__ for base in kind.__bases__] == [name for name in (parent or "Exception", builtin) if name]


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [vars(kind).get("code") for kind in EVERY]
    assert None not in codes
    assert len(set(codes)) == len(codes)


def test_the_code_is_the_name_in_snake_case() -> None:
    # Programs match codes: renaming a class must not change its code unnoticed.
    for kind in EVERY:
        name = kind.__name__.replace("SQLite", "Sqlite").replace("AgentBusError", "Error")
        code = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower().replace("not_adatabase", "not_a_database")
        assert kind.code == code


def test_every_class_has_a_docstring_of_sentences() -> None:
    assert [kind.__name__ for kind in EVERY if not (kind.__doc__ or "").strip().endswith(".")] == []


def test_facts_can_be_read_as_attributes() -> None:
    for kind in EVERY:
        error = example(kind)
        for name, value in error.facts.items():
            assert getattr(error, name) == value, kind


def test_a_fact_never_hides_a_part_of_the_error() -> None:
    # Attributes of the class win over facts: such a fact could not be read.
    assert [(kind, name) for kind in EVERY for name in fields(kind) if hasattr(kind, name)] == []


def test_the_message_has_every_fact_and_the_fix() -> None:
    for kind in EVERY:
        error = example(kind)
        for name in fields(kind):
            assert f"some {name}" in f"{error} {error.shell_fix}", kind
        if kind.fix_text is None:
            assert error.fix is None, kind
        else:
            assert error.fix is not None, kind
            assert str(error).endswith(f"({error.fix})"), kind


def test_the_fix_for_the_shell_names_no_method() -> None:
    offenders = {
        kind.__name__: error.shell_fix
        for kind in EVERY
        for error in (example(kind),)
        if re.search(r"\b(bus|session|agentbus)\.\w+\(", error.shell_fix or "")
    }
    assert offenders == {}


def test_a_subclass_with_its_own_fix_does_not_inherit_the_words_for_the_shell() -> None:
    error = errors.DamagedBackup(path="x", reason="y")
    assert error.shell_fix == error.fix != errors.NotADatabase(path="x", reason="y").shell_fix


def test_an_error_without_facts_still_has_a_message() -> None:
    assert [kind for kind in EVERY if not str(kind())] == []


def test_a_fix_with_a_missing_fact_is_left_out() -> None:
    for kind in EVERY:
        assert "?" not in f"{kind().fix}{kind().shell_fix}", kind
        assert not str(kind()).endswith("(?)"), kind


def pickled(error: AgentBusError) -> object:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_and_copying(copied: Callable[[AgentBusError], object]) -> None:
    for kind in EVERY:
        error = example(kind)
        again = copied(error)
        assert isinstance(again, AgentBusError)
        assert type(again) is kind
        assert again.facts == error.facts
        assert (str(again), again.fix, again.shell_fix) == (str(error), error.fix, error.shell_fix)


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
