"""What a bus knows of types: the Structs of this process, how their payloads are written, checked and read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeGuard

import msgspec

from agentbus.builtin import MESSAGE_TYPES
from agentbus.codec import encode
from agentbus.errors import BuiltInType, InvalidInput, InvalidName, InvalidPayload, InvalidSchema
from agentbus.limits import check_name, reason_text
from agentbus.operations.messages import Draft
from agentbus.operations.vocabulary import DefineRequest

_HUMPS = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_FIELDS = "give each field what the Struct says of it; making a Struct checks nothing, sending it does"
_PLACE = r"(?P<reason>.*) - at `(?P<path>\$.*)`"


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
        """Types of Structs with their schema that this bus has defined."""
        self._schemas: dict[str, str] = {}
        """The schema of each type, as far as this bus has heard of it. Others may have changed it since."""

    def form(self, struct: type[msgspec.Struct]) -> Form:
        """The form of a Struct. From now on messages of its type are read as this Struct."""
        form = self._by_struct.get(struct)
        if form is None:
            form = self._by_struct[struct] = Form(struct)
        self.forms[form.name] = form
        return form

    def content(self, type: str | msgspec.Struct, payload: Any) -> tuple[str, tuple[str, int], str | None]:
        """A message's type, its payload as JSON, and the schema of the Struct that stands for the type, if one does."""
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
        return form.name, self._encode(payload, form.name, form.read), form.schema

    def _encode(self, payload: msgspec.Struct, type: str, read: Callable[[str], Any]) -> tuple[str, int]:
        """Encode, and read it back: making a Struct checks nothing, and its receiver must be able to read it."""
        try:
            # Keys that are numbers become text, and numbers again when the Struct is read.
            plain = msgspec.to_builtins(payload, str_keys=True)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise InvalidPayload(
                type=type, path="$", reason=f"for {type!r}, {reason_text(error)}", rule=_FIELDS
            ) from None
        body = encode(plain, self.limit)
        try:
            read(body[0])
        except msgspec.ValidationError as error:
            import re

            found = re.fullmatch(_PLACE, str(error), re.DOTALL)
            path, reason = (found["path"], found["reason"]) if found else ("$", str(error))
            raise InvalidPayload(type=type, path=path, reason=f"for {type!r}, {path}: {reason}", rule=_FIELDS) from None
        return body

    def undefined(self, drafts: Iterable[Draft], by: str) -> list[DefineRequest]:
        """The types of these drafts that are used for the first time."""
        new = {(draft.type, draft.defines) for draft in drafts if draft.defines is not None} - self._defined
        return [DefineRequest("message", name, schema=schema, by=by) for name, schema in sorted(new)]

    def remember(self, definitions: Iterable[DefineRequest]) -> None:
        """These are committed."""
        for one in definitions:
            if one.schema is not None:
                self._defined.add((one.name, one.schema))
                self._schemas[one.name] = one.schema

    def learn(self, schemas: dict[str, str]) -> None:
        """These are the schemas that the bus has now."""
        self._schemas.update(schemas)

    def concerns(self, drafts: Iterable[Draft]) -> bool:
        """Whether there is something to be checked, as far as this bus knows."""
        return any(draft.type in self._schemas or draft.defines is not None for draft in drafts)

    def schemas(self, drafts: Collection[Draft]) -> dict[str, str | None]:
        """What payloads of these types must fit, as far as this bus knows, once what is new is defined."""
        coming = {one.name: one.schema for one in self.undefined(drafts, by="")}
        return {draft.type: coming.get(draft.type) or self._schemas.get(draft.type) for draft in drafts}


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
    # Imported only here, as all that has to do with Structs: the command line sends plain JSON.
    import re

    tag = struct.__struct_config__.tag
    return tag if isinstance(tag, str) else re.sub(_HUMPS, "_", struct.__name__).lower()


def _reader(struct: type[msgspec.Struct]) -> Callable[[str], Any]:
    try:
        return msgspec.json.Decoder(struct).decode
    except (TypeError, ValueError, NameError) as error:
        rule = "give its fields types that msgspec can read"
        raise InvalidPayload(reason=f"nobody can read a {struct.__name__}: {error}", rule=rule) from None


def definition(what: object, kind: str, description: str, schema: object, vocabulary: Vocabulary) -> DefineRequest:
    """What ``bus.define`` was asked for, checked."""
    if _is_struct(what):
        if kind != "message" or schema is not None:
            raise InvalidInput(reason="a Struct is a message type, and has its own schema")
        form = vocabulary.form(what)
        return DefineRequest("message", form.name, description, form.schema)
    if isinstance(what, msgspec.Struct):
        name = what.__class__.__name__
        raise InvalidInput(reason=f"this is one {name}; define the class: bus.define({name})")
    if isinstance(what, type):
        raise InvalidInput(reason=f"{what.__name__} is no msgspec.Struct; define one, or a name with a schema")
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
