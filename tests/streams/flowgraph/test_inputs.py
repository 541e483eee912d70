"""InputAligner against a model: all messages of a tick together, ticks in order, and no wait for an edge that already has a later tick."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.streams.flowgraph.graphs import Item
from wal.streams.flowgraph import SkipTickMsg
from wal.streams.flowgraph.node import InputAligner


@given(st.data())
def test_in_any_order_of_arrival(data: st.DataObject) -> None:
    streams = data.draw(st.lists(st.lists(st.integers(0, 20), unique=True).map(sorted), min_size=1, max_size=4))
    aligner = InputAligner(len(streams))
    arrived = [0] * len(streams)
    ended: set[int] = set()
    taken: list[int] = []
    while len(ended) < len(streams):
        assert not aligner.ended
        edge = data.draw(st.sampled_from([edge for edge in range(len(streams)) if edge not in ended]))
        if arrived[edge] < len(streams[edge]):
            aligner.queues[edge].append(Item(streams[edge][arrived[edge]], edge))
            arrived[edge] += 1
        else:
            aligner.end(edge)
            ended.add(edge)
        # A tick is determined when every edge has a tick that is as high, or has ended.
        shown = [ticks[count - 1] if count else -1 for ticks, count in zip(streams, arrived, strict=True)]
        bound = min((shown[edge] for edge in range(len(streams)) if edge not in ended), default=20)
        known = [tick for tick in sorted({tick for stream in streams for tick in stream}) if tick <= bound]
        while data.draw(st.booleans()) and (got := aligner.take()) is not None:
            tick, msgs = got
            taken.append(tick)
            assert msgs == [Item(tick, edge) if tick in stream else SkipTickMsg(tick) for edge, stream in enumerate(streams)]
        assert taken == known[: len(taken)]
        assert [len(aligner.queues[edge]) for edge in range(len(streams))] == [
            len([tick for tick in stream[:count] if tick not in taken]) for stream, count in zip(streams, arrived, strict=True)
        ]
        if taken == known:
            assert aligner.take() is None
        assert aligner.missing == [edge for edge in range(len(streams)) if edge not in ended and len(aligner.queues[edge]) == 0]
    while (got := aligner.take()) is not None:
        taken.append(got[0])
    assert aligner.ended
    assert taken == sorted({tick for stream in streams for tick in stream})
