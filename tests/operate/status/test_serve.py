"""`wal serve` as a process, beside the process that writes the log."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.locations import open_wal
from tests.operate.cli.test_change import until_shown
from tests.processes import Child, run_python
from wal import Message


async def test_page_beside_the_writer(data_dir: Path) -> None:
    token = "a token that nobody guesses"
    async with open_wal(f"journal:{data_dir}") as log:
        await log.raw_append(Message("orders", b"x"))
        await until_shown(data_dir, "orders")
        environment = {**os.environ, "WAL_SERVER_TOKEN": token}
        headers = {"Authorization": f"Bearer {token}"}
        async with Child("-m", "wal", "serve", data_dir, "--listen", "127.0.0.1:0", environment=environment) as process:
            address = (await process.line()).removeprefix("listening on ")
            async with httpx.AsyncClient(base_url=address, headers=headers) as client:
                assert (await client.get("/api/live")).json()["role"] == "reader"
                assert [row["vchannel"] for row in (await client.get("/api/ls")).json()["rows"]] == ["orders"]
                call: dict[str, Any] = {"cursor": "billing", "vchannels": ["orders"], "to": "earliest", "confirm": "billing"}
                assert (await client.post("/api/actions/cursor-set", json=call)).is_success
                assert [cursor.name for cursor in await log.cursors()] == ["billing"]
                refused = await client.post("/api/actions/append", json={"vchannel": "orders", "payload": "p"})
                assert (refused.status_code, refused.json()["error"]) == (400, "InvalidArgumentError")
            process.send_signal(signal.SIGTERM)
            await process.end()


@pytest.mark.parametrize(
    ("arguments", "status", "text"), [(["--listen", "0.0.0.0:0"], 2, "token"), (["--listen", "nowhere"], 2, "HOST:PORT")]
)
async def test_wrong_arguments_are_one_sentence(data_dir: Path, arguments: list[str], status: int, text: str) -> None:
    async with open_wal(f"journal:{data_dir}"):
        ended = await asyncio.to_thread(run_python, "-m", "wal", "serve", data_dir, *arguments, code=status)
    assert text in ended.err
    assert "Traceback" not in ended.err
