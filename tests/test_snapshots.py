"""Snapshots of checkpoints: the same JSON as payloads, and large ones are looked through beside the loop."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given

import agentbus
from agentbus import checkpoints, codec
from agentbus.codec import LARGE, encode, open_snapshot, snapshot
from agentbus.errors import DamagedPayload, InvalidInput, InvalidPayload, SnapshotTooLarge
from tests.test_codec import LIMIT, anything, good, thorough


@contextmanager
def everything_is_large() -> Iterator[None]:
    with patch.object(codec, "LARGE", -1):
        yield


def taken(value: Any) -> str | type[InvalidInput]:
    try:
        return snapshot(value, LIMIT).settle()[0]
    except InvalidInput as error:
        return type(error)


@thorough
@given(anything)
def test_a_snapshot_is_the_json_that_a_payload_would_be_large_or_small(value: Any) -> None:
    try:
        expected: str | type[InvalidInput] = encode(value, LIMIT)[0]
    except InvalidInput as error:
        expected = type(error)
    assert taken(value) == expected
    with everything_is_large():
        assert taken(value) == expected


@thorough
@given(good)
def test_a_snapshot_is_opened_as_it_was(value: Any) -> None:
    text, checksum = snapshot(value, LIMIT).settle()
    assert checksum == sha256(text.encode()).hexdigest()
    assert open_snapshot(text, checksum, "it") == value
    with everything_is_large():
        assert open_snapshot(text, checksum, "it") == value


def test_what_changes_after_a_snapshot_was_taken_is_not_in_it() -> None:
    value: dict[str, Any] = {"text": "x" * LARGE, "list": [1]}
    large = snapshot(value, 2 * LARGE)
    value["list"].append(float("nan"))
    value["new"] = object()
    assert open_snapshot(*large.settle(), "it") == {"text": "x" * LARGE, "list": [1]}


def test_what_was_wrong_when_a_snapshot_was_taken_is_found_though_it_was_mended_since() -> None:
    value: dict[str, Any] = {"text": "x" * LARGE, "number": float("nan")}
    large = snapshot(value, 2 * LARGE)
    value["number"] = 1
    with pytest.raises(InvalidPayload):
        large.settle()


def test_the_limit_is_exact() -> None:
    assert snapshot("x" * 8, 10).settle()[0] == '"xxxxxxxx"'
    with pytest.raises(SnapshotTooLarge) as refused:
        snapshot("x" * 9, 10)
    assert (refused.value.size, refused.value.limit) == (11, 10)


@pytest.mark.parametrize("size", [1, 2 * LARGE])
def test_another_checksum_is_damage(size: int) -> None:
    with pytest.raises(DamagedPayload) as damaged:
        open_snapshot('"' + "x" * size + '"', "0" * 64, "checkpoint 7")
    assert damaged.value.what == "checkpoint 7"


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_are_only_put_off(enabled: bool) -> None:
    text, checksum = snapshot("x" * LARGE, 2 * LARGE).settle()
    try:
        (gc.enable if enabled else gc.disable)()
        snapshot("x" * LARGE, 2 * LARGE)
        assert gc.isenabled() is enabled
        with pytest.raises(InvalidPayload):
            snapshot(["x" * LARGE, {1: 2}, 1j], 2 * LARGE)
        assert gc.isenabled() is enabled
        open_snapshot(text, checksum, "it")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


@pytest.mark.parametrize(("size", "aside"), [(1000, False), (LARGE + 1, True)])
async def test_a_large_snapshot_is_looked_through_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, aside: bool
) -> None:
    here = threading.get_ident()
    places: dict[str, int] = {}
    settle, opening = codec.Snapshot.settle, open_snapshot

    def settled(self: codec.Snapshot) -> tuple[str, str]:
        places["settle"] = threading.get_ident()
        return settle(self)

    def opened(*args: Any) -> Any:
        places["open"] = threading.get_ident()
        return opening(*args)

    monkeypatch.setattr(codec.Snapshot, "settle", settled)
    monkeypatch.setattr(checkpoints, "open_snapshot", opened)
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        await a.checkpoint("n", "x" * size)
        async with a.unit() as unit:
            unit.checkpoint("m", "x" * size)
        await a.restore()
    assert {name: place != here for name, place in places.items()} == {"settle": aside, "open": aside}
