"""Prompts: broadcasts that one frame completes, as long as nothing comes of them but that it is durable.

Most broadcasts are so: all vchannels on one pchannel, nobody has to acknowledge, the log takes the copies at once. The frame is their
intent and their end, there is nothing to save, and they cost little more than a plain append. Owns those under way. Promises: whoever
looks for one (a watcher, an abort, the list of tasks), and every outcome but "all in", gets a `Running` like all others, in the state in
which it would be: nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from broadcaster.calls import AppendCall, Running
from broadcaster.content import Content
from broadcaster.errands import Errands
from broadcaster.task import Task
from broadcaster.writer import FRAMES_MAX, Writer
from wal.message import BroadcastHeader

if TYPE_CHECKING:
    from wal.errors import WALError
    from wal.message import AppendResult

__all__ = ["Prompt", "Prompts"]


class Prompt(msgspec.Struct, eq=False):
    """One of them. `future`: what the log answers. `running`: what it became when somebody looked for it."""

    call: AppendCall
    header: BroadcastHeader
    content: Content
    places: Mapping[str, Sequence[str]]
    future: asyncio.Future[Sequence[AppendResult | WALError]]
    running: Running | None = None


class Prompts:
    """`over(prompt, outcomes)` is called in the turn in which all copies are known to be in, `wake(act)` makes that turn."""

    def __init__(
        self,
        writer: Writer,
        errands: Errands,
        *,
        wake: Callable[..., object],
        over: Callable[[Prompt, Sequence[Any]], object],
        began: Callable[[Running], object],
    ) -> None:
        self._writer = writer
        self._errands = errands
        self._wake = wake
        self._over = over
        self._began = began
        self._prompts: dict[int, Prompt] = {}
        """By their owners."""
        self._closing = False

    def __len__(self) -> int:
        return len(self._prompts)

    def begin(
        self, call: AppendCall, header: BroadcastHeader, content: Content, places: Mapping[str, Sequence[str]]
    ) -> bool:
        """Begins it, holding its keys; False when it is none of these."""
        writer = self._writer
        if header.needs_ack or len(places) != 1 or writer.frames >= FRAMES_MAX or self._closing:
            return False
        (pchannel,) = places
        future = writer.operator.append_copies_nowait(pchannel, header.vchannels, content, header)
        if future is None:
            return False
        writer.frames += 1
        prompt = Prompt(call, header, content, places, future)
        self._prompts[call.owner] = prompt
        future.add_done_callback(partial(self._wake, self._ended, prompt))
        return True

    def id_of(self, owner: int) -> int | None:
        """The broadcast of this owner, if it is one of these."""
        prompt = self._prompts.get(owner)
        return None if prompt is None else prompt.header.broadcast_id

    def become_running(self) -> None:
        """Whoever looks for one of them finds it among all others; there are never many."""
        for owner, prompt in self._prompts.items():
            call = prompt.call
            task = Task(prompt.header, prompt.places)
            (step,) = task.steps()
            caller = None if call.withdrawn else call
            prompt.running = running = Running(task, owner, prompt.content, size=call.size, caller=caller)
            self._errands.run(prompt.future, partial(self._writer.appended, running, step))
            self._began(running)
        self._prompts.clear()

    def close(self) -> None:
        """Begins none any more, and leaves those under way to the others."""
        self._closing = True
        self.become_running()

    def _ended(self, prompt: Prompt, future: asyncio.Future[Sequence[AppendResult | WALError]]) -> None:
        if prompt.running is not None:
            return
        if future.cancelled() or future.exception() is not None or not getattr(future.result(), "all_in", False):
            self.become_running()
            return
        del self._prompts[prompt.call.owner]
        self._writer.frames -= 1
        self._over(prompt, future.result())
