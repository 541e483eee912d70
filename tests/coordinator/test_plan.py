"""The balancer's plan: assignments, pchannels that stay, and the doubt about the loss of many nodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from wal.coordinator.plan import PROVEN_S, REST_S, MassLoss, NodeView, Placed, plan

PROVEN = NodeView(PROVEN_S)
TTL_S = 10.0


def after(pchannels: dict[str, Placed], moves: dict[str, int]) -> dict[str, Placed]:
    return pchannels | {name: Placed(server_id) for name, server_id in moves.items()}


def test_first_plan_is_even() -> None:
    moves = plan({f"p{number}": Placed(None) for number in range(7)}, {1: PROVEN, 2: PROVEN, 3: PROVEN})
    assert sorted(Counter(moves.values()).values()) == [2, 2, 3]


def test_plan_without_nodes_is_empty() -> None:
    assert plan({"p0": Placed(None)}, {}) == {}


def test_lost_node_moves_its_own_pchannels_only() -> None:
    pchannels = {f"p{number}": Placed(number % 3 + 1) for number in range(9)}
    moves = plan(pchannels, {1: PROVEN, 2: PROVEN})
    assert moves.keys() == {name for name, placed in pchannels.items() if placed.owner == 3}


def test_lost_node_also_moves_recently_moved_pchannels() -> None:
    assert plan({"p0": Placed(9, rested_s=1.0)}, {1: PROVEN}) == {"p0": 1}


def test_pchannel_that_moved_a_moment_ago_stays() -> None:
    assert plan({"p0": Placed(1, rested_s=REST_S - 1), "p1": Placed(1, rested_s=0.0)}, {1: PROVEN, 2: PROVEN}) == {}


def test_draining_node_gives_everything_away_and_gets_nothing() -> None:
    def counts(pchannels: dict[str, Placed], nodes: dict[int, NodeView]) -> Counter[int | None]:
        return Counter(dict.fromkeys(nodes, 0)) + Counter(placed.owner for placed in pchannels.values())

    pchannels = {"p0": Placed(1), "p1": Placed(1), "p2": Placed(2), "p3": Placed(None)}
    moves = plan(pchannels, {1: NodeView(PROVEN_S, drains=True), 2: PROVEN, 3: PROVEN})
    assert counts(after(pchannels, moves), {}) == {2: 2, 3: 2}


def test_unhealthy_node_gives_everything_away() -> None:
    assert plan({"p0": Placed(1)}, {1: NodeView(0.0), 2: PROVEN}) == {"p0": 2}


def test_last_node_keeps_everything_while_draining() -> None:
    assert plan({"p0": Placed(1)}, {1: NodeView(PROVEN_S, drains=True)}) == {}


def test_node_that_came_a_moment_ago_gets_nothing() -> None:
    assert plan({"p0": Placed(1), "p1": Placed(1)}, {1: PROVEN, 2: NodeView(PROVEN_S - 1)}) == {}


def test_first_nodes_of_a_cluster_are_accepted() -> None:
    assert plan({"p0": Placed(None)}, {1: NodeView(0.5)}) == {"p0": 1}


def test_paused_balancer_places_only_what_is_nowhere() -> None:
    pchannels = {"p0": Placed(1), "p1": Placed(1), "p2": Placed(None), "p3": Placed(3)}
    assert plan(pchannels, {1: PROVEN, 2: PROVEN, 3: NodeView(PROVEN_S, drains=True)}, paused=True) == {"p2": 2}


NODES = st.dictionaries(
    st.integers(1, 8), st.builds(NodeView, healthy_s=st.sampled_from([0.0, 1.0, PROVEN_S]), drains=st.booleans()), max_size=6
)
PCHANNELS = st.dictionaries(
    st.integers(0, 40).map(lambda number: f"p{number}"),
    st.builds(Placed, owner=st.one_of(st.none(), st.integers(1, 8)), rested_s=st.sampled_from([0.0, REST_S])),
)


@given(PCHANNELS, NODES, st.booleans())
def test_every_move_has_a_reason(pchannels: dict[str, Placed], nodes: dict[int, NodeView], paused: bool) -> None:
    moves = plan(pchannels, nodes, paused=paused)
    for name, target in moves.items():
        owner = pchannels[name].owner
        assert target != owner
        assert nodes[target].healthy_s > 0.0
        assert not nodes[target].drains
        if owner in nodes:
            assert not paused
            assert pchannels[name].rested_s >= REST_S
    if any(node.healthy_s > 0.0 and not node.drains for node in nodes.values()):
        assert moves.keys() >= {name for name, placed in pchannels.items() if placed.owner not in nodes}


@given(PCHANNELS, NODES)
def test_second_plan_is_empty(pchannels: dict[str, Placed], nodes: dict[int, NodeView]) -> None:
    rested = {name: Placed(placed.owner) for name, placed in pchannels.items()}
    placed = after(rested, plan(rested, nodes))
    assert plan(placed, nodes) == {}


@given(PCHANNELS, st.sets(st.integers(1, 8), min_size=1))
def test_counts_of_equal_nodes_differ_by_one(pchannels: dict[str, Placed], live: set[int]) -> None:
    nodes = dict.fromkeys(live, PROVEN)
    rested = {name: Placed(placed.owner) for name, placed in pchannels.items()}
    moves = plan(rested, nodes)
    numbers = Counter(placed.owner for placed in after(rested, moves).values())
    assert max(numbers[server_id] for server_id in live) - min(numbers[server_id] for server_id in live) <= 1
    # No plan has fewer moves: each node keeps as many pchannels as it may have.
    kept = Counter(placed.owner for placed in rested.values() if placed.owner in live)
    share, more = divmod(len(rested), len(live))
    room = [share + 1] * more + [share] * (len(live) - more)
    best = sum(min(have, most) for have, most in zip(sorted(kept.values(), reverse=True), room, strict=False))
    assert len(moves) == len(rested) - best


@given(PCHANNELS, NODES)
def test_plan_depends_on_no_order(pchannels: dict[str, Placed], nodes: dict[int, NodeView]) -> None:
    assert plan(pchannels, nodes) == plan(dict(reversed(pchannels.items())), dict(reversed(nodes.items())))


def test_loss_of_one_node_moves_its_pchannels() -> None:
    pchannels = {f"p{number}": Placed(number % 100 + 1) for number in range(10_000)}
    nodes = dict.fromkeys(range(2, 101), PROVEN)
    moves = plan(pchannels, nodes)
    assert len(moves) == 100
    assert plan(after(pchannels, moves), nodes) == {}


def test_loss_of_most_nodes_is_doubted_once() -> None:
    losses = MassLoss(ttl_s=TTL_S)
    assert losses.look([1, 2, 3], 0.0) == 0.0
    assert losses.look([1], 5.0) == TTL_S
    assert losses.look([1], 14.0) == 1.0
    assert losses.look([1], 15.0) == 0.0
    assert losses.look([1], 16.0) == 0.0


def test_losses_one_after_the_other_are_believed() -> None:
    losses = MassLoss(ttl_s=TTL_S)
    for now_s, live in ((0.0, [1, 2, 3]), (5.0, [1, 2]), (16.0, [1])):
        assert losses.look(live, now_s) == 0.0


def test_loss_of_one_of_two_nodes_is_believed() -> None:
    losses = MassLoss(ttl_s=TTL_S)
    assert losses.look([1, 2], 0.0) == 0.0
    assert losses.look([], 1.0) == 0.0


def test_nodes_that_come_back_end_no_doubt_early() -> None:
    losses = MassLoss(ttl_s=TTL_S)
    losses.look([1, 2, 3], 0.0)
    assert losses.look([], 1.0) == TTL_S
    assert losses.look([1, 2, 3], 2.0) == TTL_S - 1.0
