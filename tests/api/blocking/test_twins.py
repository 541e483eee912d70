"""The blocking classes equal the output of `make twins` from the async ones."""

from __future__ import annotations

import inspect

from tests.processes import run_python
from wal.api import blocking

GENERATE = "from tests import twins; print(twins.generated(), end='')"


def test_checked_in_classes_are_the_generated_ones() -> None:
    """They are generated in a process of their own: CPython 3.11 counts the depth of `ast.parse` for all threads of a process together."""
    assert inspect.getsource(blocking) == run_python("-c", GENERATE).out, "an async class has changed: run `make twins`"
