"""Typed payloads: values through the log, versions and upcasts, and payloads that cannot be decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.probes import read_all
from wal import Message, WALAccesser
from wal.errors import InvalidArgumentError, PayloadError


class Order(msgspec.Struct):
    id: int
    note: str = ""


@dataclass
class Parcel:
    weight: float


class Plain:
    """A type that msgspec does not know."""


async def values(typed: Any, **options: Any) -> list[Any]:
    async with typed.read(follow=False, **options) as scanner:
        return [value async for value in scanner]


@pytest.mark.parametrize("codec", [None, "json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), [(Order, Order(7, "é")), (Parcel, Parcel(1.5)), (dict, {"a": [1]}), (int, 5), (str, "x")])
async def test_values_come_back(log: WALAccesser, kind: Any, value: Any, codec: Any) -> None:
    typed = log.typed("orders", kind, codec=codec)
    await typed.append(value, properties={"a": "b"})
    await typed.append_nowait(value)
    assert await values(typed) == [value, value]
    first, second = await read_all(log, "orders")
    assert (first.properties, second.properties) == ({"a": "b", "payload_version": "1"}, {"payload_version": "1"})


async def test_functions_are_a_codec(log: WALAccesser) -> None:
    typed = log.typed("orders", Plain, codec=(lambda value: b"plain", lambda payload: Plain()))
    await typed.append(Plain())
    assert [type(value) for value in await values(typed)] == [Plain]


async def test_upcasts_follow_each_other(log: WALAccesser) -> None:
    await log.append("orders", b'{"n": 1}')
    await log.typed("orders", dict, version=2, upcast={1: dict}).append({"number": 2})
    newest = log.typed(
        "orders", Order, version=3, upcast={1: lambda old: {"number": old["n"]}, 2: lambda old: {"id": old["number"], "note": "old"}}
    )
    await newest.append(Order(3))
    assert await values(newest) == [Order(1, "old"), Order(2, "old"), Order(3)]


@pytest.mark.parametrize(
    ("payload", "version", "text"),
    [(b"{", "1", "DecodeError"), (b'{"id": "x"}', "1", "ValidationError"), (b"{}", "2", "version '2'"), (b"{}", "x", "version 'x'")],
)
async def test_undecodable_payload_stops_the_read(log: WALAccesser, payload: bytes, version: str, text: str) -> None:
    orders = log.typed("orders", Order)
    await orders.append(Order(1))
    await log.append_txn("orders", b'{"id": 2}', Message("orders", payload, properties={"payload_version": version}), b'{"id": 4}')
    async with orders.read(follow=False, cursor="billing") as scanner:
        assert [await anext(scanner), await anext(scanner)] == [Order(1), Order(2)]
        for _ in range(2):
            with pytest.raises(PayloadError, match=text) as caught:
                await anext(scanner)
            assert caught.value.message is not None
            assert caught.value.message.payload == payload
        await scanner.save()
    async with orders.read(follow=False, cursor="billing") as scanner:
        assert await anext(scanner) == Order(2), "a position in the middle of a transaction is before it"


@pytest.mark.parametrize(
    ("version", "upcast", "missing"),
    [(2, {}, None), (3, {2: dict}, None), (3, {2: dict, 1: dict}, None), (3, {1: dict}, [2]), (5, {1: dict, 3: dict}, [2, 4])],
)
async def test_gaps_between_upcasts(log: WALAccesser, version: int, upcast: dict[int, Any], missing: list[int] | None) -> None:
    """They are found when the type is made; versions before the first upcast are not known, and reading one is an error."""
    if missing is not None:
        with pytest.raises(InvalidArgumentError, match=re.escape(f"none for {missing}: each leads to the next version, up to {version}")):
            log.typed("orders", dict, version=version, upcast=upcast)
        return
    orders = log.typed("orders", dict, version=version, upcast=upcast)
    await log.append("orders", b"{}", properties={"payload_version": "1"})
    if 1 in upcast:
        assert await values(orders) == [{}]
        return
    with pytest.raises(PayloadError, match="version '1' of dict, and known here are"):
        await values(orders)


async def test_bad_arguments_are_refused_at_once(log: WALAccesser) -> None:
    for options, text in (
        ({"version": 0}, "first version"),
        ({"version": 4, "upcast": {1: dict, 3: dict}}, r"none for \[2\]"),
        ({"version": 2, "upcast": {2: dict}}, "for version 2"),
        ({"codec": "yaml"}, "codec='yaml'"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            log.typed("orders", Order, **options)
    for kind, options in ((Plain, {}), (Order, {"version": "1"}), (Order, {"codec": 5}), (Order, {"version": 2, "upcast": {1: 5}})):
        with pytest.raises(TypeError):
            log.typed("orders", kind, **options)
    with pytest.raises(TypeError, match="Order is appended here"):
        await log.typed("orders", Order).append({"id": 1})  # type: ignore[call-overload]
    with pytest.raises(InvalidArgumentError, match="payload_version"):
        await log.typed("orders", Order).append(Order(1), properties={"payload_version": "7"})
    assert await read_all(log, "orders") == []
