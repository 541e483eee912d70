"""A text with "raise X" or "lower X" names a setting, or a parameter that its reader has."""

from __future__ import annotations

import re

from tests.docs.snippets import ROOT
from wal import settings


def test_remedies_name_what_there_is() -> None:
    # Parameters of calls that users make.
    parameters = {"buffer_max", "tick_bytes_max", "timeout_s"}
    REMEDY = re.compile(r'"[^"\n]*\b(?:raise|lower) ([a-z]+(?:_[a-z]+)+)\b')
    fields = [getattr(each, "__struct_fields__", ()) for each in vars(settings).values()]
    known = parameters.union(*fields)
    files = [file for room in ("wal", "broadcaster", "actors") for file in (ROOT / room).rglob("*.py")]
    remedies = [(file.name, name) for file in files for name in REMEDY.findall(file.read_text())]
    assert "txn_bytes_max" in {name for _, name in remedies}
    assert [remedy for remedy in remedies if remedy[1] not in known] == []
