"""Hostile requests to the status service: each gets an answer that names the problem, never a 500 and never a reset connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.locations import open_wal
from tests.operate.status.test_service import BEARER, TOKEN
from wal.operate.status import status_app
from wal.operate.status.app import ACTION_BYTES_MAX

JSON: Final = {**BEARER, "Content-Type": "application/json"}
DIGITS: Final = "9" * 5_000


@pytest.fixture
async def client(data_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with open_wal(f"journal:{data_dir}") as log:
        await log.append("orders", b"x")
        async with log.serve_status(token=TOKEN) as page, httpx.AsyncClient(base_url=page.address, headers=JSON) as client:
            yield client


@pytest.fixture
async def direct(data_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a connection, for many requests."""
    async with open_wal(f"journal:{data_dir}") as log:
        await log.append("orders", b"x")
        transport = httpx.ASGITransport(status_app(log, token=TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://service.example", headers=JSON) as client:
            yield client


def refused(answer: httpx.Response, what: object) -> str:
    assert answer.status_code == 400, (what, answer.status_code, answer.text[:300])
    body = answer.json()
    assert body["error"] == "InvalidArgumentError", what
    assert len(body["text"]) < 500, what
    return str(body["text"])


async def test_wrong_values_of_fields_are_refused_by_name(direct: httpx.AsyncClient) -> None:
    # The arguments of each action, as JSON.
    actions = {
        "append": {
            "vchannel": '"orders"',
            "payload": '"x"',
            "properties": "{}",
            "key": '"k"',
            "create": "true",
            "deliver_at": '"2100-01-01T00:00:00Z"',
        },
        "create": {"vchannel": '"c"', "pchannel": '"p0"'},
        "drop": {"vchannel": '"c"', "confirm": '"c"'},
        "scheduled-cancel": {"vchannel": '"orders"', "key": '"k"', "confirm": '"k"'},
        "cursor-set": {"cursor": '"c"', "vchannels": '["orders"]', "to": '"earliest"', "confirm": '"c"', "reset": "false"},
        "cursor-rm": {"cursor": '"c"', "vchannels": '["orders"]', "confirm": '"c"'},
        "broadcast-abort": {"broadcast_id": '"1"', "reason": '"r"', "confirm": '"1"'},
        "truncate": {"up_to": '"p0:1:0:0"', "confirm": '"p0:1:0:0"'},
    }

    deep = "[" * 10_000 + "]" * 10_000
    # Values that no field takes: too large, negative, not a number, nested, of a wrong type, not Unicode, not UTF-8.
    wrong = (DIGITS, "-5", "NaN", "1e400", deep, '{"a":' * 10_000, "1.5", '"\\ud800"', '"\udcff\udcfe"', '[{"a":1}]')
    # Texts that a field rejects.
    TEXTS = {
        ("broadcast-abort", "broadcast_id"): (DIGITS, "-1", "1.0", "\u0661", str(1 << 64)),
        ("cursor-set", "to"): (DIGITS, "-1", "nan", "p0:1:2:" + DIGITS, "p0:" + "f" * 5_000 + ":1:1"),
        ("truncate", "up_to"): (DIGITS, "latest", "p0:1:2:" + DIGITS),
        ("cursor-rm", "cursor"): ("", "a" * 70_000, "\u0000"),
    }

    def body_of(action: str, **changes: str) -> bytes:
        fields = {name: value for name, value in {**actions[action], **changes}.items() if value}
        return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode(errors="surrogateescape")

    optional = {"payload", "properties", "reset", "vchannels", "create", "deliver_at", "pchannel"}
    for action, fields in actions.items():
        path = f"/api/actions/{action}"
        for field, right in fields.items():
            for value in wrong:
                text = refused(await direct.post(path, content=body_of(action, **{field: value})), (action, field, value[:20]))
                assert f"arguments of {action} are wrong" in text or text.startswith(f"{field} '{value}'")
            twice = body_of(action)[:-1] + f',"{field}":{right}}}'.encode()
            assert f"'{field}' is in the arguments twice" in refused(await direct.post(path, content=twice), (action, field, "twice"))
            if field not in optional and (action, field) != ("append", "key"):
                assert f"`{field}`" in refused(await direct.post(path, content=body_of(action, **{field: ""})), (action, field, "missing"))
        unknown = body_of(action)[:-1] + f',"other":{deep}}}'.encode()
        assert "`other`" in refused(await direct.post(path, content=unknown), (action, "unknown"))
        for body in (b"", b"\xff", b"null", b"NaN", deep.encode(), DIGITS.encode(), b'{"a":' * 10_000):
            refused(await direct.post(path, content=body), (action, body[:10]))
    for (action, field), texts in TEXTS.items():
        confirm = {} if field in ("to", "cursor") else {"confirm": ""}
        for value in texts:
            changes = {field: json.dumps(value)} | ({"confirm": json.dumps(value)} if confirm or field == "cursor" else {})
            refused(await direct.post(f"/api/actions/{action}", content=body_of(action, **changes)), (action, field, value[:20]))
    for name in (DIGITS, "%ff", "append%00"):
        assert "no action" in refused(await direct.post(f"/api/actions/{name}", content=b"{}"), name)


async def test_wrong_pages_are_refused_by_name(direct: httpx.AsyncClient) -> None:
    for path in ("info", "ls", "cursors", "consumers", "broadcasts", "retention", "settings", "health"):
        for name in ("offset", "limit"):
            for value in (DIGITS,) if path != "ls" else (DIGITS, "-1", "NaN", "1e3", "", "%ff", "1.5", "%D9%A1", "0x1"):
                text = refused(await direct.get(f"/api/{path}?{name}={value}"), (path, name, value[:20]))
                assert text.startswith(f"{name} '")
                assert "give a whole number from" in text
        for query in ("offset=1&offset=2", "limit=1&limit=1", "filter=a&filter=b"):
            assert "2 times" in refused(await direct.get(f"/api/{path}?{query}"), (path, query))
        assert "from 1 to 500" in refused(await direct.get(f"/api/{path}?limit=501"), path)
        assert (await direct.get(f"/api/{path}?filter=%ff{DIGITS}")).json()["rows"] == []


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_body_above_the_limit_is_answered(client: httpx.AsyncClient, connection: str) -> None:
    large = b"x" * (3 * ACTION_BYTES_MAX)

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(large), 1 << 16):
            yield large[at : at + (1 << 16)]

    for content, length in ((large, str(len(large))), (chunks, "more than")):
        for path, headers, status, text in (
            ("/api/actions/append", {}, 413, f"{length} "),
            ("/api/actions/append", {}, 413, f"of at most {ACTION_BYTES_MAX}"),
            ("/api/actions/append", {"Authorization": "Bearer wrong"}, 401, "token"),
            ("/api/actions/append", {"Content-Type": "text/plain"}, 400, "application/json"),
            ("/api/info", {}, 405, ""),
            ("/nothing", {}, 404, ""),
        ):
            body: Any = content if isinstance(content, bytes) else content()
            answer = await client.post(path, content=body, headers={**headers, "Connection": connection})
            assert (answer.status_code, text in answer.text) == (status, True), answer.text


async def test_waiting_client_sends_no_large_body(client: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    lines = [f"{name}: {value}" for name, value in JSON.items()]
    lines += [f"Host: {client.base_url.netloc.decode()}", "Content-Length: 3000000", "Expect: 100-continue", "", ""]
    writer.write("\r\n".join(["POST /api/actions/append HTTP/1.1", *lines]).encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()
