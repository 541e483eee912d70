"""The way of a node's results to its out-edges. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Final

from wal.errors import InvalidArgumentError
from wal.flowgraph.msg import Msg, SkipTickMsg
from wal.flowgraph.node import Outputs

__all__ = ["RESULTS", "check_results", "no_message", "route", "tick_of"]

RESULTS: Final = (list, tuple, NoneType, Sequence)
"""What `operate` may give; the usual types come first, because asking an abstract one costs more."""


def route(tick: int, outputs: Outputs, targets: Sequence[object]) -> list[Msg]:
    """Returns the message for each out-edge, in their order, a SkipTickMsg where the node gave none. `targets` are named in errors.

    Raises InvalidArgumentError for a message of another tick, one for an edge that does not exist, or a second one for an edge, and
    TypeError for results that are no list of messages.
    """
    if type(outputs) is not list:  # the usual type: the call costs more than the question
        check_results(outputs)
    routed: list[Msg | None] = [None] * len(targets)
    for msg in outputs or ():
        try:
            if msg.time_tick != tick:
                raise InvalidArgumentError(
                    f"it gave a message of tick {msg.time_tick} at tick {tick}: all messages of a call have its tick"
                )
            index = msg.down_stream_node_idx
            if not -1 <= index < len(routed):
                raise InvalidArgumentError(
                    f"it gave a message for out-edge {index} at tick {tick}: it has {len(routed)} out-edges, "
                    "counted from 0; -1 means all of them"
                )
            for edge in range(len(routed)) if index == -1 else (index,):
                if routed[edge] is not None:
                    raise InvalidArgumentError(
                        f"it gave two messages for the edge to {targets[edge]} at tick {tick}: "
                        "an edge carries one message a tick, so put everything into one"
                    )
                routed[edge] = msg
        except (AttributeError, TypeError) as error:
            raise TypeError(no_message(msg, error)) from error
    return [SkipTickMsg(tick) if msg is None else msg for msg in routed]


def check_results(outputs: object) -> None:
    """Raises TypeError for results that are no list of messages."""
    if not isinstance(outputs, RESULTS) or isinstance(outputs, str | bytes):
        raise TypeError(f"it gave {outputs!r:.200}: operate() gives a list of messages, or None")


def tick_of(outputs: Sequence[Msg]) -> int:
    """Returns the tick of the results of an input node, at least one. Raises TypeError if they have none."""
    try:
        tick: int = outputs[0].time_tick
    except AttributeError as error:
        raise TypeError(no_message(outputs[0], error)) from error
    if not isinstance(tick, int):
        raise TypeError(f"it gave tick {tick!r}: a tick is an int")
    return tick


def no_message(msg: object, error: Exception) -> str:
    """Returns the text for something that is not a message, as this error shows."""
    return (
        f"it gave {msg!r:.200}, which is no message of a flow graph ({error}): operate() gives objects with time_tick, skip_this_tick and "
        "down_stream_node_idx, such as BatchMsg(tick, messages)"
    )
