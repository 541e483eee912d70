"""Models of pydantic as payloads: their own methods encode, decode and check them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel, Field, field_validator

from tests.probes import read_all
from wal import ScheduledResult, WALAccesser
from wal.errors import InvalidArgumentError, PayloadError


class Line(BaseModel):
    item: str
    price: Decimal = Field(gt=0)


class Order(BaseModel):
    id: int
    lines: list[Line] = []
    placed: datetime | None = None

    @field_validator("id")
    @classmethod
    def positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("an order has a positive id")
        return value


ORDER = Order(id=7, lines=[Line(item="té", price=Decimal("1.10"))], placed=datetime(2026, 1, 2, 3, tzinfo=UTC))


async def test_models_come_back(log: WALAccesser) -> None:
    orders = log.typed("orders", Order)
    await orders.append(ORDER)
    async with log.txn("orders") as txn:
        await txn.append(b'{"id": 8}')
    result = await orders.append(Order(id=9), deliver_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert isinstance(result, ScheduledResult)
    async with orders.read(follow=False) as scanner:
        values = [value async for value in scanner]
    assert values == [ORDER, Order(id=8), Order(id=9)]
    assert [type(value.lines[0].price) for value in values[:1]] == [Decimal]
    (first, *_) = await read_all(log, "orders")
    assert first.payload == ORDER.model_dump_json().encode()
    assert first.properties == {"payload_version": "1"}


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"{", "ValidationError"),
        (b'{"id": 0}', "an order has a positive id"),
        (b'{"id": 1, "lines": [{"item": "x", "price": -1}]}', "greater than 0"),
    ],
)
async def test_model_judges_its_payload(log: WALAccesser, payload: bytes, text: str) -> None:
    await log.append("orders", payload)
    async with log.typed("orders", Order).read(follow=False) as scanner:
        with pytest.raises(PayloadError, match=text) as caught:
            await anext(scanner)
    assert caught.value.message is not None
    assert caught.value.message.payload == payload


async def test_upcasts_end_in_the_model(log: WALAccesser) -> None:
    await log.append("orders", b'{"number": "5", "cents": 110}')
    await log.append("orders", b'{"number": "0", "cents": 110}')

    def lines(old: dict[str, object]) -> dict[str, object]:
        return {"id": old["number"], "lines": [{"item": "?", "price": f"{int(str(old['cents'])) / 100:.2f}"}]}

    orders = log.typed("orders", Order, version=2, upcast={1: lines})
    await orders.append(ORDER)
    async with orders.read(follow=False) as scanner:
        assert await anext(scanner) == Order(id=5, lines=[Line(item="?", price=Decimal("1.10"))])
        with pytest.raises(PayloadError, match="positive id"):
            await anext(scanner)


async def test_other_values_are_refused(log: WALAccesser) -> None:
    class Parcel(BaseModel):
        id: int

    orders = log.typed("orders", Order)
    for wrong in (Parcel(id=1), {"id": 1}, None):
        with pytest.raises(TypeError, match="Order is appended here"):
            await orders.append(wrong)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgumentError, match=r"none for \[2\]"):
        log.typed("orders", Order, version=3, upcast={1: dict})
    assert await read_all(log, "orders") == []
