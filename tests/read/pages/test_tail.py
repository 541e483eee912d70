"""The tail of a pchannel, where readers wait for data and ticks."""

from __future__ import annotations

from wal.read.pchannel import Tail


async def test_waiting_readers_that_give_up_are_forgotten() -> None:
    """One reader of an idle log keeps waiting, while many others give up after a timeout."""
    tail = Tail(durable_end=0, promised_tick=0, newest=None)
    patient = tail.waiter(ticks=False)
    for _ in range(10_000):
        tail.waiter(ticks=False).cancel()
    assert len(tail._data) < 1_000
    tail.data_moved(durable_end=1, promised_tick=1, newest=None)
    assert patient.done()
