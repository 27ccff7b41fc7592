"""The JSON codec: a payload round-trips exactly, or a named error is raised."""

from __future__ import annotations

import datetime
import math
import sqlite3
import zlib
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given

from agentbus.core.codec import check, decode, decode_as, encode, plain_payload
from agentbus.core.validation import MAX_DEPTH
from agentbus.errors import InvalidPayload, NotADatabase, PayloadMismatch, PayloadTooLarge
from tests.support.payloads import LIMIT, anything, bad, good, thorough


class Plan(msgspec.Struct):
    title: str
    effort: float


def same(sent: Any, received: Any) -> bool:
    """Equal, of the same types, and alike to the last bit; a tuple is received as a list."""
    if isinstance(sent, list | tuple):
        return isinstance(received, list) and len(sent) == len(received) and all(map(same, sent, received))
    if isinstance(sent, dict):
        return (
            isinstance(received, dict)
            and list(sent) == list(received)
            and all(map(same, sent.values(), received.values()))
        )
    if isinstance(sent, float):
        return isinstance(received, float) and sent.hex() == received.hex()
    return type(sent) is type(received) and bool(sent == received)


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = [] if kind == "list" else {}
    for _ in range(depth - 1):
        value = [value] if kind == "list" else {"k": value}
    return value


@thorough
@given(good)
def test_json_comes_back_exactly_as_it_was(value: Any) -> None:
    encoded, crc = encode(value, LIMIT)
    assert same(value, decode(encoded))
    assert crc == zlib.crc32(encoded.encode())
    check(encoded, crc, "it")


@thorough
@given(anything)
def test_anything_comes_back_exactly_or_raises_a_named_error(value: Any) -> None:
    try:
        encoded, _ = encode(value, LIMIT)
    except InvalidPayload:
        return
    assert same(value, decode(encoded))


@thorough
@given(good)
def test_sqlite_takes_for_json_what_we_take_for_json(value: Any) -> None:
    connection = sqlite3.connect(":memory:")
    try:
        assert connection.execute("SELECT json_valid(?)", encode(value, LIMIT)[:1]).fetchone() == (1,)
    finally:
        connection.close()


@thorough
@given(bad)
def test_what_is_not_json_is_refused_at_any_place(value: Any) -> None:
    for place in (value, [value], {"k": value}, [1, {"k": (value,)}]):
        with pytest.raises(InvalidPayload):
            encode(place, LIMIT)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_named_even_inside_a_struct(value: float) -> None:
    for place in (value, [value], {"k": value}, Plan("a", value), {"plans": [Plan("a", value)]}):
        with pytest.raises(InvalidPayload, match="finite"):
            encode(place, LIMIT)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**53 + 1, 0, -1])
def test_integers_of_64_bits_are_exact(value: int) -> None:
    assert decode(encode(value, LIMIT)[0]) == value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**30])
def test_integers_beyond_64_bits_are_refused(value: int) -> None:
    with pytest.raises(InvalidPayload):
        encode({"n": value}, LIMIT)


def test_an_integer_that_python_will_not_even_print_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        encode({"n": 1 << 20_000}, LIMIT)


@pytest.mark.parametrize("value", [-0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 123456789.123456789])
def test_floats_are_exact_to_the_last_bit(value: float) -> None:
    again = decode(encode(value, LIMIT)[0])
    assert isinstance(again, float)
    assert again.hex() == value.hex()


@pytest.mark.parametrize("surrogate", [0xD800, 0xDFFF, 0xDEAD])
def test_lone_surrogates_are_refused(surrogate: int) -> None:
    text = f"fine until {chr(surrogate)}"
    for value in (text, [text], {text: 1}, {"k": text}):
        with pytest.raises(InvalidPayload, match="Unicode"):
            encode(value, LIMIT)


@pytest.mark.parametrize("value", ["\0", "\x1f", "é", "😀", "\u2028", '"\\/', "\uffff"])
def test_every_valid_character_is_kept(value: str) -> None:
    assert decode(encode({value: value}, LIMIT)[0]) == {value: value}


@pytest.mark.parametrize("key", [1, 1.5, True, None, (1, 2), math.nan])
def test_only_text_is_a_key(key: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode({key: 1}, LIMIT)


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_nesting_is_taken_up_to_its_limit_and_not_beyond(kind: str) -> None:
    value = nested(MAX_DEPTH, kind)
    assert decode(encode(value, LIMIT)[0]) == value
    with pytest.raises(InvalidPayload, match="deep"):
        encode(nested(MAX_DEPTH + 1, kind), LIMIT)


@pytest.mark.parametrize("depth", [1_500, 100_000])
def test_absurd_nesting_is_an_error_and_not_a_crash(depth: int) -> None:
    for kind in ("list", "dict"):
        with pytest.raises(InvalidPayload, match="deep"):
            encode(nested(depth, kind), 10_000_000)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidPayload, match="deep"):
        encode(value, LIMIT)


def test_brackets_in_texts_are_not_nesting() -> None:
    value = {"text": "[" * 1_000, "other": "{" * 1_000}
    assert decode(encode(value, LIMIT)[0]) == value


def test_many_values_side_by_side_are_not_nesting() -> None:
    value: list[Any] = [[{}] for _ in range(500)]
    assert decode(encode(value, LIMIT)[0]) == value


def test_the_limit_counts_bytes_and_is_met_exactly() -> None:
    value = "é" * 10
    encoded, _ = encode(value, 22)
    assert len(encoded.encode()) == 22
    with pytest.raises(PayloadTooLarge) as caught:
        encode(value, 21)
    assert (caught.value.size, caught.value.limit) == (22, 21)


def test_tuples_structs_and_dates_are_sent_as_json() -> None:
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    value = {"plans": (Plan("a", 1.5),), "when": when}
    assert decode(encode(value, LIMIT)[0]) == {
        "plans": [{"title": "a", "effort": 1.5}],
        "when": "2026-01-02T03:04:05Z",
    }


@pytest.mark.parametrize("value", [object(), 1j, lambda: None, open])
def test_what_has_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode(value, LIMIT)


def test_our_own_json_has_a_checksum_too() -> None:
    encoded, crc = plain_payload({"dead": "é"})
    check(encoded, crc, "it")


def test_a_flipped_bit_is_noticed_and_names_what_it_hit() -> None:
    encoded, crc = encode({"amount": 100}, LIMIT)
    with pytest.raises(NotADatabase, match="message m-7"):
        check(encoded.replace("100", "101"), crc, "message m-7")


class Tagged(msgspec.Struct, tag="tagged"):
    x: int


class OtherTagged(msgspec.Struct, tag="other"):
    x: int


@pytest.mark.parametrize(
    ("as_", "text"),
    [
        (Literal["a", "b"], '"secret - at `$.x`"'),
        (Tagged | OtherTagged, '{"type": "secret", "x": 1}'),
        (int, '"secret"'),
        (list[datetime.datetime], '["secret"]'),
    ],
)
def test_what_does_not_fit_is_not_quoted(as_: Any, text: str) -> None:
    with pytest.raises(PayloadMismatch) as mismatch:
        decode_as(text, as_, "a thing")
    assert "secret" not in str(mismatch.value)
