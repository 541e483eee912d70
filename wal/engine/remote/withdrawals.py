"""Withdrawals: the requests of one producer whose callers wait no longer, until the server has been asked to withdraw them.

What was sent takes room in flight until the server has answered it, and an append that waits at the server for its barrier would be
answered only then. The request that withdraws has its turn among the others: what is added after a cancellation may share the result of
the append that was cancelled, as in an open log of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from wal.engine.remote.outbox import Outbox, Sending
from wal.rpc.api import append_pb2
from wal.rpc.api import streaming_pb2 as proto

__all__ = ["Withdrawable", "Withdrawals"]


class Withdrawable(asyncio.Future[Any]):
    """The future of a request: if that may wait at the server for long, and its producer has it, a cancellation withdraws it.

    A callback would cost three times as much in each append that is not cancelled: the loop would have to call it.
    """

    __slots__ = ("sending", "withdrawals")

    sending: Sending
    withdrawals: Withdrawals

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and (withdrawals := getattr(self, "withdrawals", None)) is not None:
            withdrawals.cancelled(self.sending)
        return cancelled


class Withdrawals:
    """The withdrawals of the requests in `outbox`. `release` gives the room of a request back that is not sent any more.

    `changed` is called when the outbox has changed.
    """

    def __init__(self, outbox: Outbox, release: Callable[[int], None], changed: Callable[[], None]) -> None:
        self._outbox = outbox
        self._release = release
        self._changed = changed
        self._cancelled: set[Sending] = set()
        self.closing: bool = False
        """Whether the log is being closed, so that every request that may wait for long is withdrawn."""

    def watch(self, sending: Sending) -> None:
        """Withdraws the request if its caller is cancelled; its future is `Withdrawable`."""
        future: Withdrawable = sending.future
        future.sending, future.withdrawals = sending, self

    def cancelled(self, sending: Sending) -> None:
        """Withdraws a request whose caller was cancelled, with all that are cancelled in this turn of the loop."""
        if not self._cancelled:
            sending.future.get_loop().call_soon(self._withdraw)
        self._cancelled.add(sending)

    def restarted(self) -> None:
        """Replaces the withdrawals on another stream: requests that are sent again have other numbers there."""
        self._outbox.take_back(lambda sending: sending.make == self._request)
        waiting = self._outbox.waiting
        if waiting and (self.closing or any(sending.may_wait and sending.future.cancelled() for sending in waiting)):
            self._add()

    def close(self) -> None:
        """Withdraws every request that may wait for long, once all are sent."""
        self.closing = True
        if self._outbox:
            self._add()

    def _withdraw(self) -> None:
        # One with a key may have a result that others share, which only the server knows.
        gone, self._cancelled = self._cancelled, set()
        taken = self._outbox.take_back(lambda sending: sending in gone and not sending.repeatable)
        self._release(sum(sending.size for sending in taken))
        if len(taken) < len(gone):
            self._add()
        self._changed()

    def _add(self) -> None:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._outbox.add(Sending(future, 0, make=self._request, repeatable=True))

    def _request(self, number: int, _seen: int) -> proto.ProduceRequest:
        ids = [
            sent
            for sent, sending in self._outbox.sent.items()
            if sending.may_wait and (self.closing or sending.future.cancelled())
        ]
        return proto.ProduceRequest(withdraw=append_pb2.WithdrawRequest(request_id=number, withdrawn_ids=ids))
