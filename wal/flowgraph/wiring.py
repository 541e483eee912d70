"""The wiring of a flow graph: which edges there are, checked before the graph starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from wal.errors import InvalidArgumentError

__all__ = ["Edges", "check_wiring", "reachable_sinks"]


class Edges(msgspec.Struct, frozen=True):
    """What `set_edges` says of one node: the names of the nodes before it and after it, in order."""

    in_: tuple[str, ...] = ()
    out: tuple[str, ...] = ()


def check_wiring(wiring: Mapping[str, Edges], is_input: Mapping[str, bool | None]) -> None:
    """Raises InvalidArgumentError unless every edge is named by both of its nodes, every node has those it needs, and there is no cycle.

    Both mappings have an entry for every node of the graph. `is_input` says whether a node must have no in-edges, or needs some, or None.
    """
    if not wiring:
        raise InvalidArgumentError("the flow graph has no nodes: add some with add_node() and set_edges()")
    for name, edges in wiring.items():
        if not edges.in_ and not edges.out:
            raise InvalidArgumentError(f"node {name!r} has no edges: connect it with set_edges(), or leave it out")
        if is_input[name] is False and not edges.in_:
            raise InvalidArgumentError(
                f"node {name!r} has no in-edges, and works on what they bring: name the nodes before it with set_edges({name!r}, in_=[…])"
            )
        if is_input[name] and edges.in_:
            raise InvalidArgumentError(
                f"node {name!r} has in-edges from {', '.join(map(repr, edges.in_))}, and is an input node, which ignores them: leave out "
                f"in_ in set_edges({name!r})"
            )
        for side, others in (("in_", edges.in_), ("out", edges.out)):
            for other in others:
                if others.count(other) > 1:
                    raise InvalidArgumentError(
                        f"set_edges({name!r}) names {other!r} more than once in {side}: two nodes have at most one edge"
                    )
                if other not in wiring:
                    raise InvalidArgumentError(
                        f"set_edges({name!r}) names {other!r} in {side}, which is no node of the graph "
                        f"({', '.join(map(repr, wiring))}): add it with add_node()"
                    )
                back, facing = ("out", wiring[other].out) if side == "in_" else ("in_", wiring[other].in_)
                if name not in facing:
                    raise InvalidArgumentError(
                        f"set_edges({name!r}) names {other!r} in {side}, but set_edges({other!r}) does not name {name!r} "
                        f"in {back}: name the edge on both sides"
                    )
    try:
        TopologicalSorter({name: edges.in_ for name, edges in wiring.items()}).prepare()
    except CycleError as error:
        cycle: Sequence[str] = error.args[1]
        raise InvalidArgumentError(
            f"the edges {' → '.join(map(repr, cycle))} are a cycle, in which every node would wait for itself: remove one"
        ) from None


def reachable_sinks(wiring: Mapping[str, Edges], name: str) -> set[str]:
    """Returns the nodes without out-edges that a node leads to; a node without out-edges leads to itself."""
    reached, waiting = {name}, [name]
    while waiting:
        for other in wiring[waiting.pop()].out:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return {one for one in reached if not wiring[one].out}
