"""Course: what follows for a broadcast from what happened to it, once a turn.

Owns the saves between the intent and the end: progress, and acks. Promises: who waited for a state is answered when it is reached; an
ack is answered when it is durable; what is to be written is handed to the writer, what is over to its ending.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from broadcaster.admission import Admission
from broadcaster.answers import delayed, stuck
from broadcaster.calls import Running, answer, refuse_caller, settle, tell_watchers
from broadcaster.ending import Ending
from broadcaster.operator import AppendOperator
from broadcaster.records import CHUNK_BITS, encode_acks, encode_progress, progress_key
from broadcaster.saver import Saver
from broadcaster.state import BroadcastState
from broadcaster.table import Table
from broadcaster.writer import Writer

__all__ = ["Course"]


class Course:
    """Of the broadcasts in a table."""

    operator: AppendOperator

    def __init__(self, table: Table, admission: Admission, writer: Writer, saver: Saver, ending: Ending) -> None:
        self._table = table
        self._admission = admission
        self._writer = writer
        self._saver = saver
        self._ending = ending
        self._to_ask: dict[int, Running] = {}
        """Broadcasts that may wait for the ack of a vchannel that was dropped."""

    def end_turn(self) -> None:
        """Does what follows for all that were touched, and hands over what is to be written and saved."""
        while (touched := self._table.take_touched()) or self._to_ask:
            for running in touched:
                self._advance(running)
            if self._to_ask:
                self._ack_dropped()
        self._writer.flush()
        self._saver.flush()

    def _advance(self, running: Running) -> None:
        """Saves and writes what the task's state asks for, and answers who waited for that state."""
        task = running.task
        if running.finishing:
            return
        if task.complete and running.content is not None:
            running.content = None
            self._admission.bytes_held -= running.size
            self._ending.appended += 1
        if task.header.needs_ack and task.state in (BroadcastState.WAIT_ACK, BroadcastState.DONE):
            answer(running)
        elif task.state is BroadcastState.STUCK:
            refuse_caller(running, stuck(task))
        elif task.delayed:
            refuse_caller(running, delayed(task))
        if task.finished:
            self._ending.finish(running)
            return
        if running.dropped and task.state is BroadcastState.WAIT_ACK:
            running.dropped = False
            self._to_ask[task.broadcast_id] = running
        if running.acks_unsaved:
            chunks, running.acks_unsaved = running.acks_unsaved, set()
            replies, running.ack_replies = running.ack_replies, []
            running.acks_saving += 1
            self._saver.save(
                encode_acks(task.broadcast_id, task.acked, chunks), then=partial(self._acks_saved, running, replies)
            )
        elif running.ack_replies:
            # They repeat acks that are being saved: what is saved after those is durable after them.
            replies, running.ack_replies = running.ack_replies, []
            self._saver.save({}, then=partial(_acks_repeated, replies))
        if running.spans and task.appended != running.progress_saved:
            running.progress_saved = task.appended
            self._saver.save({progress_key(task.broadcast_id): encode_progress(task.appended)})
        self._writer.write(running)

    def _ack_dropped(self) -> None:
        """Who was dropped has no consumer any more that could acknowledge: the drop is the ack of a copy that was in before."""
        asked, self._to_ask = self._to_ask, {}
        for broadcast_id, vchannels in self.operator.dropped(asked).items():
            running = asked[broadcast_id]
            for vchannel in vchannels:
                if (news := running.task.ack(vchannel)) is not None:
                    running.acks_unsaved.add(news // CHUNK_BITS)
            self._table.touch(running)

    def intent_saved(self, running: Running) -> None:
        running.task.saved()
        self._table.touch(running)

    def _acks_saved(self, running: Running, replies: list[Any]) -> None:
        running.acks_saving -= 1
        running.acked_once = True
        _acks_repeated(replies)
        tell_watchers(running, running.watchers_once)

    def dropped(self, vchannel: str) -> None:
        for running in self._table:
            header = running.task.header
            if header.needs_ack and vchannel in header.vchannels:
                running.dropped = True
                self._table.touch(running)


def _acks_repeated(replies: list[Any]) -> None:
    for reply in replies:
        settle(reply)
