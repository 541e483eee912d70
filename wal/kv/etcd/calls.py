"""EtcdCalls: the calls of one EtcdKV in progress, and the store's revision from their answers.

Owns: the count of calls, their bound, the highest revision that was seen, and the root path of the keys. The KV, its sessions
and its elections make their calls through the same EtcdCalls, so that a close waits for all of them. It keeps no data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from wal.errors import InvalidArgumentError, WouldBlockError
from wal.kv.etcd.api import rpc_pb2 as rpc
from wal.kv.etcd.connection import EtcdConnection
from wal.kv.etcd.requests import TXN

Answer = TypeVar("Answer")


class EtcdCalls:
    """The calls through one `connection`, on the event loop that created this object.

    `root` is the prefix of each key in etcd. At most `waiting_max` calls may be in progress; above it a call raises WouldBlockError.
    """

    def __init__(self, connection: EtcdConnection, *, root: str, waiting_max: int) -> None:
        self.connection = connection
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.idle: asyncio.Event = asyncio.Event()
        """Set while no call is in progress."""
        self.idle.set()
        self.revision: int = 0
        self.operations: int = 0
        self.commits: int = 0
        self.waiting: int = 0
        self._root = root
        self._waiting_max = waiting_max

    def full_key(self, key: str) -> bytes:
        """Returns the key as etcd has it."""
        return (self._root + key).encode()

    async def transact(self, compares: Sequence[rpc.Compare], operations: Sequence[rpc.RequestOp], what: str) -> rpc.TxnResponse:
        """Runs one transaction that changes something, as one call; etcd carries it out only if all of `compares` hold."""
        return await self.count(self.send(compares, operations, what))

    async def send(
        self, compares: Sequence[rpc.Compare], operations: Sequence[rpc.RequestOp], what: str, *, otherwise: Iterable[rpc.RequestOp] = ()
    ) -> rpc.TxnResponse:
        """Runs the transaction of `transact` within a call that is already counted; `otherwise` is read if a comparison fails."""
        request = rpc.TxnRequest(compare=compares, success=operations, failure=otherwise)
        answer = await self.connection.write(TXN, request, what)
        self.commits += answer.succeeded
        self.saw(answer)
        return answer

    async def count(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Runs one call, which counts as in progress until it ends."""
        if asyncio.get_running_loop() is not self.loop:  # a forked child has another loop as well
            call.close()
            raise InvalidArgumentError("this KV was opened by another event loop: open a KV in each loop")
        if self.waiting >= self._waiting_max:
            call.close()
            raise WouldBlockError(f"{self._waiting_max} calls wait for etcd: await some of them first")
        self.waiting += 1
        self.idle.clear()
        try:
            return await call
        finally:
            self.operations += 1
            self.waiting -= 1
            if not self.waiting:
                self.idle.set()

    def saw(self, answer: Any) -> int:
        """Records and returns the revision of the store in an answer."""
        revision: int = answer.header.revision
        self.revision = max(self.revision, revision)
        return revision
