"""Runs apart: each run in a process of its own, forked from a process that has imported everything already.

A run changes modules for good, and importing them takes longer than a short run: the fork server of `tests.processes` has imported them.
Runs are named, since nothing else passes to such a process: `incident` and `defect` make a test of what a run plays, and give it a name.
"""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from tests.processes import context
from tests.simulation import conformance, scale
from tests.simulation.run import RUN_S, Result, Script, simulate

SCRIPTS: Final = ("tests.simulation.test_incidents", "tests.simulation.test_defects")
"""The modules whose tests are what runs play."""


class Incident(msgspec.Struct, frozen=True):
    """A script, the longest pause between two appends of its clients, and the options of its world."""

    script: Script
    pause_s: float
    options: dict[str, Any]


INCIDENTS: Final[dict[str, Incident]] = {}
DEFECTS: Final[dict[str, Callable[[], None]]] = {}


def incident(*, pause_s: float = 1.0, is_long: bool = False, **options: Any) -> Callable[[Script], Callable[[int], None]]:
    """Makes a test of a script: a run that plays it finds nothing, by one seed, in the soak by ten.

    `pause_s` is the longest pause between two appends of its clients; `options` are those of its world. `is_long` leaves it to the soak: it
    takes more than a second or two, or the default tests show the same otherwise.
    """

    def decorate(script: Script) -> Callable[[int], None]:
        name = _add(INCIDENTS, script, Incident(script, pause_s, options))

        def test(soak: int) -> None:
            for seed in range(1, soak + 1):
                result = run(seed, incident=name)
                assert not result.faults, failure_of(result, f"--incident {name}")

        _name(test, script)
        why = "the default tests show it over real processes, or with a defect that the incident finds"
        return pytest.mark.soak(why)(test) if is_long else test

    return decorate


def defect(*, found_by: str | None = None, first_seed: int = 1) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Makes a test of a function that makes a defect: one of twelve runs with it finds something.

    `found_by` names the incident that they play. `first_seed` is the seed that is tried first, where the others find nothing: each of their
    runs takes seconds.
    """

    def decorate(make: Callable[[], None]) -> Callable[[], None]:
        name = _add(DEFECTS, make, make)

        def test() -> None:
            for seed in sorted(range(1, 13), key=lambda seed: seed != first_seed):
                result = run(seed, seconds=12, incident=found_by, defect=name)
                if result.faults:
                    assert not any("failed: Traceback" in fault for fault in result.faults), result.faults
                    return
            pytest.fail(f"{name} was not found")

        _name(test, make)
        return test

    return decorate


def run(seed: int, *, seconds: float = RUN_S, incident: str | None = None, defect: str | None = None) -> Result:
    """Runs one seed: random faults for `seconds`, or an incident; with a defect if one is named."""
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
    load_scripts()
    if incident is not None:
        played = INCIDENTS[incident]
        options |= {"script": played.script, "pause_s": played.pause_s, "options": played.options}
    if defect is not None:
        options["prepare"] = lambda _: DEFECTS[defect]()
    return options


def failure_of(result: Result, arguments: str, *, lines: int = 60) -> str:
    """Returns what a run found, the end of its history (0 lines: all), and how to repeat it with these arguments, for people."""
    faults = "\n".join(f"  * {fault}" for fault in result.faults[:20])
    repeat = f"repeat it: python -m tests.simulation --seed {result.seed} --runs 1 --lines 0 {arguments}"
    return "\n".join([*result.lines[-lines:], f"seed {result.seed} found {len(result.faults)}:", faults, repeat])


def load_scripts() -> None:
    """Imports what runs can play."""
    for module in SCRIPTS:
        importlib.import_module(module)


def _add(played: dict[str, Any], function: Callable[..., Any], what: Any) -> str:
    name = function.__name__.removeprefix("test_")
    played[name] = what
    return name


def _name(test: Any, function: Callable[..., Any]) -> None:
    functools.update_wrapper(test, function, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    del test.__wrapped__  # pytest would look for its fixtures


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
