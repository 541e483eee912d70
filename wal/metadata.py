"""Opening the KV that a setting names: a sqlite file, or a root path in etcd.

Owns: the way from the text to an open KV, and reading the password's file. Imports etcd's client only when it is asked for. The caller
closes what it is given.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import cast

from wal.errors import InvalidArgumentError
from wal.kv import KVBase, SqliteKV
from wal.location import EtcdLocation, parse_kv

__all__ = ["open_metadata"]


async def open_metadata(kv: str) -> KVBase:
    """The KV at `kv`, a path or `etcd://…`, open. InvalidArgumentError for a text of no known form; what the KVs raise when they open."""
    chosen = parse_kv(kv)
    if isinstance(chosen, Path):
        return await SqliteKV.open(chosen)
    # It needs grpcio, an extra; and importing it takes too long for the loop.
    etcd = await asyncio.to_thread(import_module, "wal.kv.etcd")
    tls = etcd.EtcdTls(ca=chosen.ca, certificate=chosen.certificate, key=chosen.key) if chosen.tls else None
    opened = await etcd.EtcdKV.open(
        chosen.endpoints,
        root_path=chosen.root_path,
        tls=tls,
        user=await asyncio.to_thread(_user, chosen),
        **({} if chosen.timeout_s is None else {"timeout_s": chosen.timeout_s}),
    )
    return cast("KVBase", opened)


def _user(location: EtcdLocation) -> tuple[str, str] | None:
    if location.user is None:
        return None
    if location.password_file is None:
        return location.user, location.password or ""
    try:
        return location.user, location.password_file.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the password_file of {location} cannot be read: {error}") from error
