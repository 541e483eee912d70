"""iterate and record_batches: reads of code without an event loop, by names or with a pattern."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from wal.api.arrow import load_pyarrow
from wal.api.blocking_read import Iteration
from wal.api.record_batches import RecordBatches
from wal.errors import InvalidArgumentError
from wal.message.matching import Matching
from wal.read.options import DeliverFilter, DeliverPolicy, ReadPosition
from wal.settings import Settings


def iterate(
    location: str | os.PathLike[str],
    vchannel: str | Sequence[str] | Matching,
    *,
    timeout_s: float | None = None,
    wait_s: float = 0.0,
    settings: Settings | None = None,
    deliver_policy: DeliverPolicy | None = None,
    filters: DeliverFilter | Iterable[DeliverFilter] = (),
    follow: bool = True,
    until_time_tick: int | None = None,
    resume: ReadPosition | None = None,
    cursor: str | None = None,
    include_time_ticks: bool = False,
    auto_ack: bool = False,
) -> Iteration:
    """Reads a log without an event loop: `with iterate("data/", "orders") as messages: for message in messages: …`.

    It works in any thread and any process, whether or not another process writes the log. The options are those of
    `WALAccesser.read`; `auto_ack=True` is an InvalidArgumentError, because only the process that writes the log can acknowledge. A
    `next()` that waits longer than `timeout_s` raises TimeoutError, and the iteration can continue. It blocks: in an event loop use
    `log.read`. `settings` are those for locating and reaching the log, for example `kv`.

    A log in `memory:` cannot be read this way: InvalidArgumentError. Without a log the call raises FormatError; with `wait_s`
    it first waits up to that many seconds for a process to create one.

    With `Matching("account-*")` the messages of all vchannels that match come in the order of their ticks. Such a read has a thread of its
    own.
    """
    reading = Iteration
    if isinstance(vchannel, Matching):
        from wal.api.family_read import FamilyIteration as reading  # only here: an open log costs more imports
    return reading(
        location,
        vchannel,
        timeout_s=timeout_s,
        wait_s=wait_s,
        settings=settings,
        cursor=cursor,
        deliver_policy=deliver_policy,
        filters=filters,
        follow=follow,
        until_time_tick=until_time_tick,
        resume=resume,
        include_time_ticks=include_time_ticks,
        auto_ack=auto_ack,
    )


def record_batches(
    location: str | os.PathLike[str],
    vchannel: str | Sequence[str] | Matching,
    *,
    timeout_s: float | None = None,
    wait_s: float = 0.0,
    settings: Settings | None = None,
    rows_max: int = 65_536,
    bytes_max: int = 8 * 1024 * 1024,
    columns: Sequence[str] | None = None,
    deliver_policy: DeliverPolicy | None = None,
    filters: DeliverFilter | Iterable[DeliverFilter] = (),
    follow: bool = True,
    until_time_tick: int | None = None,
    resume: ReadPosition | None = None,
    cursor: str | None = None,
    include_time_ticks: bool = False,
    auto_ack: bool = False,
) -> RecordBatches:
    """Reads a log as `pyarrow.RecordBatch`es: one row for each plain message and each body of a transaction, in the order of `iterate`.

    The columns are vchannel string, message_id binary, time_tick int64, message_type string, txn_id int64 (null for plain messages),
    payload binary, properties map<string, string>, append_time timestamp[us, UTC]. `columns` names some of them, in the wanted order; None
    means all. Fewer columns cost less: data that only the others need is not gathered.

    A batch has at most `rows_max` rows and about `bytes_max` bytes. At the tail of the log the rows gathered so far become a batch, without
    waiting for more. The other options, and the errors, are those of `iterate`. Without pyarrow the call raises ImportError.
    """
    load_pyarrow()
    for name, value in (("rows_max", rows_max), ("bytes_max", bytes_max)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {value!r}")
        if value < 1:
            raise InvalidArgumentError(f"{name}={value} is out of range: a batch holds at least 1")
    reading = RecordBatches
    if isinstance(vchannel, Matching):
        from wal.api.family_read import FamilyBatches as reading  # as above
    return reading(
        location,
        vchannel,
        rows_max,
        bytes_max,
        columns,
        timeout_s=timeout_s,
        wait_s=wait_s,
        settings=settings,
        cursor=cursor,
        deliver_policy=deliver_policy,
        filters=filters,
        follow=follow,
        until_time_tick=until_time_tick,
        resume=resume,
        include_time_ticks=include_time_ticks,
        auto_ack=auto_ack,
    )
