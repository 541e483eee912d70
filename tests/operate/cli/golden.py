"""The pinned JSON of every command. `python -m tests.operate.cli.golden` writes golden/ again, for a new field or a new command.

A row keeps its fields in their order, with the values that are the same in every run. The others are replaced by `<time>`, `<id>`,
`<digits>`, `<path>`, `<number>` and the like, so the type of each field is pinned as well.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from wal import BroadcastMessage, Message, bridge
from wal.operate.cli.main import main

GOLDEN: Final = Path(__file__).parent / "golden"
_COUNTS: Final = frozenset(
    ("version", "v", "pchannels", "vchannels", "messages", "lag_messages", "duplicates", "sequence", "term", "events", "records", "damaged",
     "cursors", "backup", "writers", "forgotten")
)  # fmt: skip
_EXACT: Final = re.compile(r".*(tick|_id|position|incarnation)s?|id|end|checkpoint")
"""The fields whose numbers are texts in JSON, because jq and JavaScript round those above 2^53."""
_FORMS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"), "<time>"),
    (re.compile(r"p\d+:[0-9a-f]{8,}:\d+:\d+(@\d+)?"), "<id>"),
    (re.compile(r"/[^ ]*/golden-[^ /]*"), "<path>"),
    (re.compile(r"objects/[^ ]+"), "<object>"),
    (re.compile(r"0x[0-9a-f]{8}"), "<crc>"),
    (re.compile(r"\b\d{5,}\b"), "<number>"),
)
_SETTINGS: Final = ("pchannels", "compression", "retention_s")


def commands(folder: Path) -> Iterator[tuple[str, list[str], str, int]]:
    """Yields (name, arguments, standard input, status) of each command in its turn; between them the log changes as the next one needs."""
    data, target = str(folder / "data"), str(folder / "backups")
    with bridge.blocking(data) as log:
        for number in range(3):
            log.raw_append(Message("orders", b"order %d" % number, properties={"n": str(number)}), idempotency_key=f"key-{number}")
        with log.txn(vchannels=["orders", "stock"]) as txn:
            txn.append(Message("orders", b"paid"))
            txn.append(Message("stock", b"\xff"))
        broadcast = log.broadcast().append(BroadcastMessage(vchannels=["orders", "stock"], payload=b"all"))
        log.append("orders", b"later", deliver_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key="later")
        with log.read("orders", cursor="billing", follow=False) as messages:
            next(iter(messages))
            messages.save()
    for name in ("info", "ls", "cursors", "broadcasts", "retention", "health", "settings"):
        yield name, [name, data], "", 0
    yield "tail", ["tail", data, "orders", "-n", "2"], "", 0
    yield "cat", ["cat", data, "orders", "stock"], "", 0
    yield "peek", ["peek", data, "billing", "-n", "1"], "", 0
    yield "dump", ["dump", data, "--frames"], "", 0
    yield "top", ["top", data, "-n", "1"], "", 0
    yield "append", ["append", data, "orders", "--lines", "--key", "import"], "a\nb\n", 0
    yield "scheduled", ["scheduled", data], "", 0
    yield "scheduled-cancel", ["scheduled", data, "--cancel", "later", "--yes"], "", 0
    yield "create", ["create", data, "created"], "", 0
    yield "drop", ["drop", data, "created", "--yes"], "", 0
    yield "redrive", ["redrive", data, "stock", "--dry-run"], "", 1
    yield "cursor-set", ["cursor", "set", data, "billing", "--to", "latest", "--yes"], "", 0
    yield "cursor-reset", ["cursor", "reset", data, "billing", "--yes"], "", 0
    yield "cursor-rm", ["cursor", "rm", data, "billing", "--yes"], "", 0
    yield "broadcast-abort", ["broadcast", "abort", data, str(broadcast.broadcast_id), "--reason", "stuck", "--yes"], "", 0
    yield "copy", ["copy", data, str(folder / "copied")], "", 0
    yield "truncate", ["truncate", data, "--up-to", "0s", "--yes"], "", 0
    yield "backup", ["backup", data, "--to", target], "", 0
    yield "backup-status", ["backup", "status", target], "", 0
    yield "restore", ["restore", target, str(folder / "restored")], "", 0
    yield "bench", ["bench", str(folder), "--time", "0.2s", "--writers", "2"], "", 0
    yield "verify", ["verify", data], "", 0
    Path(data, "pchannels/p0/vchannels").write_bytes(b"damage")
    yield "repair", ["repair", data, "--dry-run"], "", 1
    consumed = str(folder / "consumed")
    with bridge.blocking(consumed) as log:
        page = log._thread.call(log._async.serve_status)
        try:
            log.append_txn("orders", [b"a book"])
            with log.consume("orders", str, cursor="packing") as consumer:
                consumer.caught_up()
                yield "consumers", ["consumers", consumed], "", 0
        finally:  # the thread of the log waits for the page, also when a row differs
            log._thread.call(page.close)


def rows_of(arguments: list[str], text: str, status: int) -> list[dict[str, Any]]:
    """Runs a command with --json; returns its rows in their pinned form."""
    printed, given = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode())))
    try:
        with contextlib.redirect_stdout(printed):
            actual = main([*arguments, "--json"])
    finally:
        sys.stdin = given
    assert actual == status, f"{arguments} ended with {actual}"
    rows = [json.loads(line) for line in printed.getvalue().splitlines()]
    assert inexact(rows) == [], f"{arguments} prints numbers that jq rounds"
    return [_pinned(row) for row in rows if row.get("row") not in ("copy_progress",) and row.get("setting") in (None, *_SETTINGS)]


def inexact(value: Any, name: str = "") -> list[tuple[str, float]]:
    """Returns the numbers in parsed JSON, with the names of their fields, that a parser with floats may round, or that are names."""
    if isinstance(value, dict):
        return [each for key, below in value.items() for each in inexact(below, key)]
    if isinstance(value, list):
        return [each for below in value for each in inexact(below, name)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [(name, value)] if is_number and (abs(value) > 1 << 53 or _EXACT.fullmatch(name)) else []


def golden(name: str) -> list[dict[str, Any]]:
    """Returns the pinned rows of a command."""
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


def _pinned(row: dict[str, Any]) -> dict[str, Any]:
    measured = row.get("row") == "bench"
    return {name: "<number>" if measured and name == "messages" else _value(name, value) for name, value in row.items()}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _pinned(value)
    if isinstance(value, list):
        return [_value(name, each) for each in value]
    if isinstance(value, str):
        if name == "release":
            return "<release>"
        if _EXACT.fullmatch(name) and value.isdecimal():
            return "<digits>"
        for form, stands in _FORMS:
            value = form.sub(stands, value)
        return value
    if isinstance(value, bool) or value is None or name in _COUNTS:
        return value
    return "<number>" if isinstance(value, int) else "<float>"


def _write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        for name, arguments, text, status in commands(Path(folder)):
            rows = rows_of(arguments, text, status)
            (GOLDEN / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    _write()
