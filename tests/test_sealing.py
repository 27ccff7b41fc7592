"""Large values are worked on beside the event loop; what looks large is found without encoding it."""

from __future__ import annotations

import threading
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from agentbus import sealing
from agentbus.errors import DamagedPayload, PayloadMismatch, SnapshotTooLarge
from agentbus.sealing import LARGE, looks_large, seal, seal_aside, unseal, unseal_aside


class Plan(msgspec.Struct):
    phases: list[str]


def test_a_value_is_sealed_with_the_sum_of_its_bytes_and_comes_back() -> None:
    text, checksum = seal({"ü": [1, 2]}, 1000)
    assert text == '{"ü":[1,2]}'
    assert checksum == sha256(text.encode()).hexdigest()
    assert unseal(text, checksum, "it") == {"ü": [1, 2]}


def test_a_damaged_text_is_noticed() -> None:
    _, checksum = seal([1, 2], 1000)
    with pytest.raises(DamagedPayload) as damaged:
        unseal("[1,3]", checksum, "version 3 of it")
    assert "version 3 of it" in str(damaged.value)


def test_a_value_is_read_as_a_type_or_refused_by_name() -> None:
    sealed = seal(Plan(["design"]), 1000)
    assert unseal(*sealed, "it", Plan) == Plan(["design"])
    with pytest.raises(PayloadMismatch):
        unseal(*sealed, "it", list[int])


def test_the_limit_holds() -> None:
    with pytest.raises(SnapshotTooLarge) as refused:
        seal("x" * 99, 100)
    assert (refused.value.size, refused.value.limit) == (101, 100)


SMALL: list[Any] = [None, True, 5, 1.5, "x", "x" * 1000, [], {}, [[1]] * 100, {"a": {"b": "c" * 100}}, (1, 2)]
BIG: list[Any] = [
    "x" * LARGE, ["x" * 1000] * 300, list(range(20_000)), {str(n): n for n in range(20_000)},
    {"deep": [{"x": "x" * LARGE}]}, [["x" * 10_000] * 30], Plan([]), {"set": {1}}, b"x",
]  # fmt: skip


@pytest.mark.parametrize("value", SMALL, ids=lambda value: repr(value)[:20])
def test_a_small_value_does_not_look_large(value: Any) -> None:
    assert not looks_large(value)


@pytest.mark.parametrize("value", BIG, ids=lambda value: repr(value)[:20])
def test_a_large_value_or_one_that_cannot_be_seen_through_looks_large(value: Any) -> None:
    assert looks_large(value)


def test_a_value_that_holds_itself_looks_large_in_the_end() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert looks_large(circle)


@pytest.mark.parametrize(("value", "aside"), [("x" * 100, False), ("x" * LARGE, True)])
async def test_only_large_values_are_worked_on_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, value: str, aside: bool
) -> None:
    threads: list[bool] = []

    def noting(function: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            threads.append(threading.current_thread() is not threading.main_thread())
            return function(*arguments)

        return noted

    monkeypatch.setattr(sealing, "seal", noting(seal))
    monkeypatch.setattr(sealing, "unseal", noting(unseal))
    sealed = await seal_aside(value, 10**7)
    assert await unseal_aside(*sealed, "it") == value
    assert threads == [aside, aside]
