"""The blocking classes are those that `make twins` generates from the async ones."""

from __future__ import annotations

import inspect

from tests import twins
from wal.api import blocking


def test_checked_in_classes_are_the_generated_ones() -> None:
    assert inspect.getsource(blocking) == twins.generated(), "an async class has changed: run `make twins`"
