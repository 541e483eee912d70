"""Runs apart: each run in a process of its own, forked from one that has imported everything already.

A run changes modules for good, and importing them takes longer than a short run: the fork server of `tests.processes` has imported them.
Runs are named, since nothing else passes to such a process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from tests.processes import context
from tests.simulation import conformance, scale
from tests.simulation.defects import DEFECTS
from tests.simulation.incidents import INCIDENTS
from tests.simulation.run import RUN_S, Result, simulate


def run(seed: int, *, seconds: float = RUN_S, incident: str | None = None, defect: str | None = None) -> Result:
    """Runs one seed: random faults for so many seconds, or an incident; with a defect if one is named."""
    result: Result = _call(_run, seed, seconds, incident, defect)
    return result


def failures(suite: str, *some: str, broken: bool = False) -> dict[str, list[str]]:
    """Runs a suite over the simulation's etcd or broker, as `conformance.failures` does."""
    found: dict[str, list[str]] = _call(conformance.failures, suite, broken, some)
    return found


def lose_a_node(seed: int, pchannels: int, nodes: int, *, measures: bool) -> scale.Cost:
    """Counts what the loss of a node costs, as `scale.lose_a_node` does."""
    cost: scale.Cost = _call(scale.lose_a_node, seed, pchannels, nodes, measures)
    return cost


def options_of(seconds: float, incident: str | None, defect: str | None) -> dict[str, object]:
    """Returns the options of `run_apart` for what is named."""
    options: dict[str, object] = {"seconds": seconds}
    if incident is not None:
        played = INCIDENTS[incident]
        options |= {"script": played.script, "pause_s": played.pause_s, "options": played.options}
    if defect is not None:
        options["prepare"] = DEFECTS[defect]
    return options


def failure_of(result: Result, arguments: str, *, lines: int = 60) -> str:
    """Returns what a run found, the end of its history (0 lines: all), and how to repeat it with these arguments, for people."""
    faults = "\n".join(f"  * {fault}" for fault in result.faults[:20])
    repeat = f"repeat it: python -m tests.simulation --seed {result.seed} --runs 1 --lines 0 {arguments}"
    return "\n".join([*result.lines[-lines:], f"seed {result.seed} found {len(result.faults)}:", faults, repeat])


def _run(seed: int, seconds: float, incident: str | None, defect: str | None) -> Result:
    options: dict[str, Any] = options_of(seconds, incident, defect)
    return simulate(seed, **options)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Returns what a function returns that is called in a process of its own. Raises AssertionError with what it raises."""
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(writing, function, args))
    child.start()
    writing.close()
    try:
        result, failure = reading.recv()
    except EOFError:
        result, failure = None, "the process ended without a result"
    child.join()
    assert not failure, failure
    return result


def _answer(writing: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = function(*args), ""
    except BaseException as failure:
        answer = None, "".join(traceback.format_exception(failure))
    writing.send(answer)
