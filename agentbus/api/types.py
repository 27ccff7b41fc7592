"""Message types in this process: the Structs that stand for them, and the schemas of the bus as far as known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeGuard

import msgspec

from agentbus.core.codec import encode
from agentbus.core.validation import check_name, reason_text
from agentbus.errors import BuiltInType, InvalidInput, InvalidName, InvalidPayload, InvalidSchema
from agentbus.operations.rows import Draft
from agentbus.operations.types import DefineRequest

_WORD_STARTS = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_RULE = "give each field a value of its declared type; a Struct is checked when it is sent, not when it is made"
_LOCATION = r"(?P<reason>.*) - at `(?P<path>\$.*)`"


class PayloadType:
    """A Struct as a message type: its name, its schema, its decoder."""

    __slots__ = ("decode", "name", "schema", "struct")

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self.struct = struct
        self.name = type_name(struct)
        if _is_built_in(self.name):
            raise BuiltInType(kind="message", name=self.name)
        try:
            schema = msgspec.json.schema(struct)
            self.decode = msgspec.json.Decoder(struct).decode
        except (TypeError, ValueError, NameError) as error:
            reason = f"{struct.__name__} has none: {error}"
            raise InvalidSchema(type=self.name, path="#", reason=reason) from None
        self.schema = _schema_text(schema, self.name)


class Vocabulary:
    """The message types that one bus has used in this process."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes of a payload, at most."""
        self.payload_types: dict[str, PayloadType] = {}
        """The Struct that payloads are decoded as, by type."""
        self.known_schemas: dict[str, str] = {}
        """The schema of each type, as this process last saw it. Another process may have changed it."""
        self._by_struct: dict[type[msgspec.Struct], PayloadType] = {}
        self._defined: set[tuple[str, str]] = set()
        """Types of Structs, with their schemas, that this bus has defined."""

    def payload_type(self, struct: type[msgspec.Struct]) -> PayloadType:
        """Return the type of a Struct. From now on payloads of its type are decoded as this Struct."""
        found = self._by_struct.get(struct)
        if found is None:
            found = self._by_struct[struct] = PayloadType(struct)
        self.payload_types[found.name] = found
        return found

    def encode_struct(self, type: object, payload: Any) -> tuple[str, tuple[str, int], str | None]:
        """Return the type of a message, its payload as JSON, and the schema of the Struct that stands for the type, if
        one does. The Struct is given in place of the type, or is the payload."""
        if isinstance(type, msgspec.Struct):
            if payload is not None:
                raise InvalidInput(reason=f"the {type.__class__.__name__} is the payload; do not give another")
            payload = type
        elif _is_struct(type):
            raise InvalidInput(reason=f"{type.__name__} is a class; send one of its instances")
        else:
            name = check_name(type, "message type")
            if not isinstance(payload, msgspec.Struct):
                return name, encode(payload, self.limit), None
            if _is_built_in(name) or name != _own_name(payload.__class__):
                # Only a payload: receivers read it as plain JSON.
                return name, self._encode(payload, name, _decoder(payload.__class__)), None
        found = self.payload_type(payload.__class__)
        return found.name, self._encode(payload, found.name, found.decode), found.schema

    def _encode(self, payload: msgspec.Struct, type: str, decode: Callable[[str], Any]) -> tuple[str, int]:
        """Encode a Struct and decode it again: making one checks nothing, and its receiver must be able to read it."""
        try:
            # Keys that are numbers become text, and numbers again when the Struct is decoded.
            plain = msgspec.to_builtins(payload, str_keys=True)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise InvalidPayload(
                type=type, path="$", reason=f"for {type!r}, {reason_text(error)}", rule=_RULE
            ) from None
        body = encode(plain, self.limit)
        try:
            decode(body[0])
        except msgspec.ValidationError as error:
            import re

            found = re.fullmatch(_LOCATION, str(error), re.DOTALL)
            path, reason = (found["path"], found["reason"]) if found else ("$", str(error))
            raise InvalidPayload(type=type, path=path, reason=f"for {type!r}, {path}: {reason}", rule=_RULE) from None
        return body

    def undefined(self, drafts: Iterable[Draft], by: str) -> list[DefineRequest]:
        """Return the definitions of Structs among these drafts that this bus has not defined yet."""
        new = {(draft.type, draft.defines) for draft in drafts if draft.defines is not None} - self._defined
        return [DefineRequest("message", name, schema=schema, by=by) for name, schema in sorted(new)]

    def remember(self, definitions: Iterable[DefineRequest]) -> None:
        """Note that these definitions are committed."""
        for one in definitions:
            if one.schema is not None:
                self._defined.add((one.name, one.schema))
                self.known_schemas[one.name] = one.schema

    def learn(self, schemas: dict[str, str]) -> None:
        """Note the schemas that the bus has now."""
        self.known_schemas.update(schemas)

    def schemas(self, drafts: Collection[Draft]) -> dict[str, str | None]:
        """Return the schema of each type among these drafts, as known, once its new Structs are defined."""
        coming = {one.name: one.schema for one in self.undefined(drafts, by="")}
        return {draft.type: coming.get(draft.type) or self.known_schemas.get(draft.type) for draft in drafts}


def type_name(struct: type[msgspec.Struct]) -> str:
    """Return the message type that a Struct stands for: its tag, or the name of its class in snake case.

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


def definition(what: object, kind: str, description: str, schema: object, vocabulary: Vocabulary) -> DefineRequest:
    """Check the arguments of ``bus.define``."""
    if _is_struct(what):
        if kind != "message" or schema is not None:
            raise InvalidInput(reason="a Struct is a message type, and has its own schema")
        found = vocabulary.payload_type(what)
        return DefineRequest("message", found.name, description, found.schema)
    if isinstance(what, msgspec.Struct):
        name = what.__class__.__name__
        raise InvalidInput(reason=f"this is one {name}; define the class: bus.define({name})")
    if isinstance(what, type):
        raise InvalidInput(reason=f"{what.__name__} is not a msgspec.Struct; define one, or a name with a schema")
    name = check_name(what, f"{kind} type")
    if schema is None:
        return DefineRequest(kind, name, description)
    if kind != "message":
        raise InvalidInput(reason="only message types have a schema")
    return DefineRequest(kind, name, description, _schema_text(schema, name))


def _is_built_in(name: str) -> bool:
    # Imported only here: a command sends plain JSON.
    from agentbus.core.builtin_types import MESSAGE_TYPES

    return name in MESSAGE_TYPES


def _own_name(struct: type[msgspec.Struct]) -> str:
    # Imported here, as by everything about Structs: a command sends plain JSON.
    import re

    tag = struct.__struct_config__.tag
    return tag if isinstance(tag, str) else re.sub(_WORD_STARTS, "_", struct.__name__).lower()


def _decoder(struct: type[msgspec.Struct]) -> Callable[[str], Any]:
    try:
        return msgspec.json.Decoder(struct).decode
    except (TypeError, ValueError, NameError) as error:
        rule = "give its fields types that msgspec can decode"
        raise InvalidPayload(reason=f"a {struct.__name__} cannot be decoded: {error}", rule=rule) from None


def _schema_text(schema: object, type: str) -> str:
    from agentbus.core.jsonschema import schema_text

    return schema_text(schema, type)


def _is_struct(value: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(value, type) and issubclass(value, msgspec.Struct)
