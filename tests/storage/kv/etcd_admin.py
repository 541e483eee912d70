"""Calls of the tests to an etcd without the client: through etcd's own JSON gateway, off the loop."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any


def text(value: str) -> str:
    """Returns bytes in the gateway's encoding."""
    return base64.b64encode(value.encode()).decode()


async def call(address: str, path: str, *, tls: ssl.SSLContext | None = None, token: str | None = None, **request: Any) -> dict[str, Any]:
    """Calls `/v3/…` with a JSON body and returns the answer. Raises urllib.error.HTTPError when etcd refuses."""
    url = f"{'http' if tls is None else 'https'}://{address}/v3/{path}"
    headers = {} if token is None else {"Authorization": token}
    asked = urllib.request.Request(url, json.dumps(request).encode(), headers)
    return await asyncio.to_thread(_answer, asked, tls)


async def compact(address: str, revision: int) -> None:
    await call(address, "kv/compaction", revision=revision, physical=True)


async def revoke(address: str, lease: int) -> None:
    await call(address, "lease/revoke", ID=lease)


async def leases(address: str) -> set[int]:
    answer = await call(address, "lease/leases")
    return {int(lease["ID"]) for lease in answer.get("leases", ())}


async def watchers(address: str) -> int:
    """Returns the number of the server's watchers, from its metrics."""
    page = await asyncio.to_thread(_page, f"http://{address}/metrics")
    (line,) = [line for line in page.splitlines() if line.startswith("etcd_debugging_mvcc_watcher_total ")]
    return int(float(line.split()[1]))


def _answer(request: urllib.request.Request, tls: ssl.SSLContext | None) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{request.full_url}: {error.read().decode()}") from error


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        page: str = answer.read().decode()
        return page
