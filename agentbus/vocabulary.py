"""What a bus knows of types: the Structs of this process, how their payloads are written and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import msgspec

from agentbus.builtin import MESSAGE_TYPES
from agentbus.codec import encode
from agentbus.errors import BuiltInType, InvalidInput, InvalidName, InvalidPayload, InvalidSchema
from agentbus.limits import check_name
from agentbus.operations.messages import Draft
from agentbus.operations.vocabulary import DefineRequest, misfit

_humps = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])").sub
_place = re.compile(r"(?P<reason>.*) - at `(?P<path>\$.*)`", re.DOTALL).fullmatch


class Form:
    """A Struct as a message type: its name, its schema, how it is read."""

    __slots__ = ("name", "read", "schema", "struct")

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self.struct = struct
        self.name = type_name(struct)
        if self.name in MESSAGE_TYPES:
            raise BuiltInType(kind="message", name=self.name)
        try:
            schema = msgspec.json.schema(struct)
            self.read = msgspec.json.Decoder(struct).decode
        except (TypeError, ValueError, NameError) as error:
            reason = f"{struct.__name__} has none: {error}"
            raise InvalidSchema(type=self.name, path="#", reason=reason) from None
        self.schema = _schema_text(schema, self.name)


class Vocabulary:
    """The types that one bus has met in this process."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.forms: dict[str, Form] = {}
        """How payloads are read, by type."""
        self._by_struct: dict[type[msgspec.Struct], Form] = {}
        self._defined: set[tuple[str, str]] = set()
        """Types with their schema that are known to be in the database."""

    def form(self, struct: type[msgspec.Struct]) -> Form:
        """The form of a Struct. From now on messages of its type are read as this Struct."""
        form = self._by_struct.get(struct)
        if form is None:
            form = self._by_struct[struct] = Form(struct)
        self.forms[form.name] = form
        return form

    def content(self, type: str | msgspec.Struct, payload: Any) -> tuple[str, tuple[str, int], str | None]:
        """A message's type, its payload as JSON, and the schema that this is known to fit."""
        if type.__class__ is str and not isinstance(payload, msgspec.Struct):
            return check_name(type, "message type"), encode(payload, self.limit), None
        if isinstance(type, msgspec.Struct):
            if payload is not None:
                raise InvalidInput(reason=f"the {type.__class__.__name__} is the payload; do not give another")
            payload = type
        elif _is_struct(type):
            raise InvalidInput(reason=f"{type.__name__} is a class; send one of its instances")
        else:
            name = check_name(type, "message type")
            if name in MESSAGE_TYPES or name != _own_name(payload.__class__):
                # Just a payload: it is read as plain JSON.
                return name, self._encode(payload, name, _reader(payload.__class__)), None
        form = self.form(payload.__class__)
        body = self._encode(payload, form.name, form.read)
        problem = misfit(form.name, body[0], form.schema)
        if problem is not None:
            raise problem
        return form.name, body, form.schema

    def _encode(self, payload: msgspec.Struct, type: str, read: Callable[[str], Any]) -> tuple[str, int]:
        """Encode, and read it back: making a Struct checks nothing, and its receiver must be able to read it."""
        try:
            # Keys that are numbers become text, and numbers again when the Struct is read.
            plain = msgspec.to_builtins(payload, str_keys=True)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise InvalidPayload(type=type, path="$", reason=f"for {type!r}, {error}") from None
        body = encode(plain, self.limit)
        try:
            read(body[0])
        except msgspec.ValidationError as error:
            found = _place(str(error))
            path, reason = (found["path"], found["reason"]) if found else ("$", str(error))
            raise InvalidPayload(type=type, path=path, reason=f"for {type!r}, {path}: {reason}") from None
        return body

    def undefined(self, drafts: Iterable[Draft], by: str) -> list[DefineRequest]:
        """The types of these drafts that are used for the first time."""
        typed = [draft for draft in drafts if draft.fits is not None]
        if not typed:
            return []
        new = {(draft.type, draft.fits or "") for draft in typed} - self._defined
        return [DefineRequest("message", name, schema=schema, by=by) for name, schema in sorted(new)]

    def remember(self, definitions: Iterable[DefineRequest]) -> None:
        """These are committed."""
        self._defined.update((one.name, one.schema) for one in definitions if one.schema is not None)


def type_name(struct: type[msgspec.Struct]) -> str:
    """The message type that a Struct stands for: its tag, or the name of the class in snake case.

    >>> class BuildReport(msgspec.Struct): ...
    >>> type_name(BuildReport)
    'build_report'
    """
    name = _own_name(struct)
    try:
        return check_name(name, "message type")
    except InvalidName:
        rule = f"give {struct.__name__} a tag that is a name: class {struct.__name__}(Struct, tag='…')"
        raise InvalidName(what="message type", name=name, rule=rule) from None


def _own_name(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    return tag if isinstance(tag, str) else _humps("_", struct.__name__).lower()


def _reader(struct: type[msgspec.Struct]) -> Callable[[str], Any]:
    try:
        return msgspec.json.Decoder(struct).decode
    except (TypeError, ValueError, NameError) as error:
        raise InvalidPayload(reason=f"nobody can read a {struct.__name__}: {error}") from None


def definition(what: object, kind: str, description: str, schema: object, vocabulary: Vocabulary) -> DefineRequest:
    """What ``bus.define`` was asked for, checked."""
    if _is_struct(what):
        if kind != "message" or schema is not None:
            raise InvalidInput(reason="a Struct is a message type, and has its own schema")
        form = vocabulary.form(what)
        return DefineRequest("message", form.name, description, form.schema)
    name = check_name(what, f"{kind} type")
    if schema is None:
        return DefineRequest(kind, name, description)
    if kind != "message":
        raise InvalidInput(reason="only message types have a schema")
    return DefineRequest(kind, name, description, _schema_text(schema, name))


def _schema_text(schema: object, type: str) -> str:
    # Imported only here: the command line should start without it.
    from agentbus.schema import schema_text

    return schema_text(schema, type)


def _is_struct(value: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(value, type) and issubclass(value, msgspec.Struct)
