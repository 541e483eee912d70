"""FunctionNode calls plain functions, coroutine functions and functions in a thread alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from wal.errors import InvalidArgumentError
from wal.streams.flowgraph import Msg, Outputs, SkipTickMsg
from wal.streams.flowgraph.nodes import BatchMsg, FunctionNode


async def called(node: FunctionNode, *msgs: Msg) -> Outputs:
    """Calls the node as a graph does."""
    if node.in_thread:
        result = await asyncio.to_thread(node.operate, list(msgs))
    else:
        result = node.operate(list(msgs))
    if isinstance(result, Awaitable):
        return await result
    return result


def total(tick: int, *inputs: Any) -> list[Any]:
    return [tick, *map(sum, inputs), threading.current_thread() is threading.main_thread()]


async def total_later(tick: int, *inputs: Any) -> list[Any]:
    await asyncio.sleep(0)
    return total(tick, *inputs)


class Total:
    async def __call__(self, tick: int, *inputs: Any) -> list[Any]:
        return await total_later(tick, *inputs)


@pytest.mark.parametrize(("function", "in_thread"), [(total, False), (total_later, False), (Total(), False), (total, True)])
async def test_function_node_passes_its_results(function: Callable[..., Any], in_thread: bool) -> None:
    node = FunctionNode("total", function, in_thread=in_thread)
    given = await called(node, BatchMsg(7, [1, 2]), SkipTickMsg(7), BatchMsg(7, []))
    assert given == [BatchMsg(7, [7, 3, 0, 0, not in_thread])]


@pytest.mark.parametrize(
    ("returned", "given"),
    [
        (None, None),
        ([], [BatchMsg(3, [])]),
        ((1, 2), [BatchMsg(3, (1, 2))]),
        ({2: [1], 0: range(5, 7)}, [BatchMsg(3, [1], 2), BatchMsg(3, [5, 6], 0)]),
        ({}, []),
        (range(2), [BatchMsg(3, [0, 1])]),
    ],
)
async def test_results_of_functions_are_checked(returned: Any, given: Any) -> None:
    assert await called(FunctionNode("f", lambda tick, messages: returned), BatchMsg(3, [])) == given


async def test_generator_is_consumed_once_for_all_branches() -> None:
    def doubled(tick: int, messages: list[int]) -> Any:
        for message in messages:
            yield 2 * message

    assert await called(FunctionNode("f", doubled), BatchMsg(3, [1, 2])) == [BatchMsg(3, [2, 4])]


@pytest.mark.parametrize("returned", ["text", b"bytes", 7, BatchMsg(3, []), {0: "text"}, {0: None}])
async def test_another_result_is_refused(returned: Any) -> None:
    with pytest.raises(TypeError, match=r"function of node 'f' returned .*: return messages"):
        await called(FunctionNode("f", lambda tick, messages: returned), BatchMsg(3, []))


async def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"calls a function\(tick, \*inputs\), not 7"):
        FunctionNode("f", 7)  # type: ignore[arg-type]
    for function in (total_later, Total()):
        with pytest.raises(InvalidArgumentError, match="in_thread=True runs a plain function"):
            FunctionNode("f", function, in_thread=True)
    with pytest.raises(TypeError, match="node 'f' takes BatchMsg, not object"):
        await called(FunctionNode("f", total), BatchMsg(3, []), object())  # type: ignore[arg-type]
