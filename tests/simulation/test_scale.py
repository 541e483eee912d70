"""The loss of one node costs what the node had: 400 pchannels on 10 nodes, and 10,000 on 100 in the soak."""

from __future__ import annotations

from tests.simulation import apart
from wal.rpc.methods import ASSIGN, REMOVE
from wal.storage.kv.etcd.requests import RANGE, TXN


def test_loss_of_a_node_costs_what_it_had(soak: int) -> None:
    # The longest that one callback may hold the loop; measured in the soak alone, since it depends on the machine.
    hold_s = 0.05
    pchannels, nodes = (10_000, 100) if soak > 1 else (400, 10)
    cost = apart.lose_a_node(1, pchannels, nodes, measures=soak > 1)
    assert cost.faults == []
    moved = pchannels // nodes
    assert cost.moved == moved
    assert cost.uneven <= 1
    # Messages: each pchannel is opened once; what is saved and loaded for that is a handful each, and a little for each node.
    assert (cost.requests[ASSIGN.path], cost.requests.get(REMOVE.path, 0)) == (moved, 0)
    assert cost.requests[TXN.path] <= 12 * moved + 25 * nodes
    assert cost.requests[RANGE.path] <= 12 * moved + 25 * nodes
    assert max(cost.watched.values()) <= 4 * moved + nodes
    assert max(cost.told_bytes.values()) <= 1_000_000
    # Work: the plan looks at all pchannels, so it is made for the loss, and not for each move.
    assert cost.plans <= 5
    assert cost.second_plan == 0, "nothing has changed, and something would move"
    if soak > 1:
        assert cost.longest_step_s <= hold_s, cost.longest_step
