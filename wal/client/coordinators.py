"""Coordinators: the addresses of a cluster's coordinators, from the root of the cluster in etcd.

They are the candidates of an election, each under its address. A client needs etcd only for that. Without etcd a client names the
coordinators' addresses (`wal://…`), and any of them returns the leader. The client follows the candidates, so it outlives all coordinators
of its beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wal.channels.cluster import LEADER
from wal.channels.metadata import open_etcd
from wal.errors import UnavailableError
from wal.location import EtcdLocation
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import end_tasks
from wal.storage.kv.following import follow_prefix

if TYPE_CHECKING:
    from wal.storage.kv.etcd import EtcdKV

WAIT_S: Final = 10.0
"""How long the opening waits for a coordinator at least."""
_log: Final = logging.getLogger("wal.remote")


class Coordinators:
    """The coordinators of one cluster. `open` finds them; `close` it."""

    def __init__(self, kv: EtcdKV, addresses: tuple[str, ...]) -> None:
        self.addresses: tuple[str, ...] = addresses
        """Those that were there at the opening."""
        self._kv = kv
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, root: EtcdLocation, *, wait_s: float = 0.0) -> Coordinators:
        """Finds the coordinators of the cluster at this root. Raises UnavailableError if none appears in time."""
        kv = await open_etcd(root)
        deadline = asyncio.get_running_loop().time() + max(wait_s, WAIT_S)
        backoff = Backoff(0.02, 0.5)
        try:
            while not (addresses := await _candidates(kv)):
                if asyncio.get_running_loop().time() >= deadline:
                    raise UnavailableError(
                        f"no coordinator at {root}: is a cluster there (wal coordinator {root}), or is the root another one?"
                    )
                await asyncio.sleep(backoff.next())
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(kv.close()))
            raise
        return cls(kv, addresses)

    def follow(self, came: Callable[[str], None]) -> None:
        """Calls `came` with the address of each coordinator that comes, perhaps again."""
        self._following = asyncio.get_running_loop().create_task(self._follow(came), name="coordinators")

    async def close(self) -> None:
        """Follows them no longer. Idempotent."""
        await end_tasks(self._following)
        await self._kv.close()

    async def _follow(self, came: Callable[[str], None]) -> None:
        async def read() -> None:
            for address in await _candidates(self._kv):
                came(address)

        await follow_prefix(
            self._kv,
            LEADER,
            read=read,
            changed=lambda event: None if event.value is None else came(event.value),
            late=lambda error: _log.info("the coordinators are not followed now: %s", error),
        )


async def _candidates(kv: EtcdKV) -> tuple[str, ...]:
    _, values = await kv.load_with_prefix(LEADER)
    return tuple(dict.fromkeys(values))
