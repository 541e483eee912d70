"""Calls: what the public object tells the broadcaster, each with the future of its caller; and a broadcast as it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from broadcaster.content import Content
from broadcaster.message import BroadcastMessage, BroadcastTask
from broadcaster.results import BroadcastAppendResult, Outcomes
from broadcaster.task import Task
from wal.message import ResourceKey

__all__ = [
    "AbortCall",
    "AckCall",
    "AppendCall",
    "Running",
    "TasksCall",
    "WatchCall",
    "Withdraw",
    "answer",
    "refuse",
    "refuse_caller",
    "settle",
    "tell_watchers",
]


class AppendCall(msgspec.Struct, eq=False):
    """Append this message. `owner`: its number in the lock table, once it has one.

    `broadcast_id`: one that was fresh when the call came; a call that `waited` for its keys takes another one then, if it can.
    """

    message: BroadcastMessage
    wait: bool
    reply: asyncio.Future[BroadcastAppendResult]
    broadcast_id: int
    size: int = 0
    owner: int = 0
    waited: bool = False
    withdrawn: bool = False

    def asked(self, reply: asyncio.Future[BroadcastAppendResult]) -> AppendCall:
        """The same call by way of the inbox: in an ask, with its reply."""
        self.reply = reply
        return self


class AckCall(msgspec.Struct, eq=False):
    broadcast_id: int
    vchannel: str
    reply: asyncio.Future[None]


class AbortCall(msgspec.Struct, eq=False):
    broadcast_id: int
    reason: str
    reply: asyncio.Future[None]


class WatchCall(msgspec.Struct, eq=False):
    """Wait until each broadcast that holds the key now was acknowledged once (or everywhere). `owners`: those still to come."""

    key: ResourceKey
    everywhere: bool
    reply: asyncio.Future[None]
    owners: set[int] = set()


class TasksCall(msgspec.Struct, eq=False):
    reply: asyncio.Future[list[BroadcastTask]]


class Withdraw(msgspec.Struct, eq=False):
    """The caller was cancelled: a call that still waits for keys, or only watches, is over; a broadcast that began goes on."""

    call: AppendCall | WatchCall


class Running(msgspec.Struct, eq=False):
    """A broadcast from its keys to its end.

    `content` is dropped once all copies are in. `caller` is None once it was answered or is gone; `outcomes` are for it.
    `spans`: it lies on several pchannels, so that there is a record of it. `dropped`: one of its vchannels may have been dropped.
    `acks_unsaved`: chunks to be saved; `acks_saving`: saves under way; `ack_replies`: who is to hear of the next.
    """

    task: Task
    owner: int
    content: Content | None
    size: int = 0
    caller: AppendCall | None = None
    outcomes: list[Outcomes] = []
    spans: bool = False
    progress_saved: int = 0
    acks_unsaved: set[int] = set()
    acks_saving: int = 0
    ack_replies: list[asyncio.Future[None]] = []
    acked_once: bool = False
    abort_replies: list[asyncio.Future[None]] = []
    watchers_once: list[WatchCall] = []
    watchers_all: list[WatchCall] = []
    finishing: bool = False
    dropped: bool = False


def settle(reply: asyncio.Future[None]) -> None:
    """Answers, unless the caller is gone."""
    if not reply.done():
        reply.set_result(None)


def refuse(reply: asyncio.Future[Any], error: Exception) -> None:
    """Answers with an error, unless the caller is gone."""
    if not reply.done():
        reply.set_exception(error)


def answer(running: Running) -> None:
    """Answers who appended it, if he still waits: all copies are in."""
    caller, running.caller = running.caller, None
    if caller is not None and not caller.reply.done():
        header = running.task.header
        caller.reply.set_result(BroadcastAppendResult.of(header.broadcast_id, header.vchannels, running.outcomes))
    running.outcomes = []


def refuse_caller(running: Running, error: Exception) -> None:
    """Answers him with an error."""
    caller, running.caller = running.caller, None
    running.outcomes = []
    if caller is not None:
        refuse(caller.reply, error)


def tell_watchers(running: Running, watchers: list[WatchCall]) -> None:
    """Answers those of its watchers who wait for no other broadcast."""
    for call in watchers:
        call.owners.discard(running.owner)
        if not call.owners:
            settle(call.reply)
    watchers.clear()
