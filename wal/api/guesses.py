"""The text of the error for a call or a keyword that an open log does not have: its name here, for people who know another one. Pure."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

from wal.errors import BULK_CALL
from wal.requests.appends import WriteOptions

_APPEND: Final = f"append(vchannel, payload), append_nowait, {BULK_CALL} or append_txn"
_READ: Final = "read(vchannel), with `async for`, and cursor=… for a position that the log saves"
_GUESSES: Final = {
    **dict.fromkeys(("produce", "publish", "push", "put", "send", "write", "add", "log", "emit"), _APPEND),
    **dict.fromkeys(("get", "iterate", "listen", "poll", "pull", "scan", "scanner", "subscribe", "tail"), _READ),
    **dict.fromkeys(("begin", "begin_transaction", "begin_txn", "transaction"), "txn(vchannel)"),
    **dict.fromkeys(("commit", "rollback"), "txn(vchannel), which returns a transaction to commit or to roll back"),
    **dict.fromkeys(("channels", "list_vchannels", "streams", "topics"), "vchannels()"),
    **dict.fromkeys(("create_channel", "create_stream", "create_topic"), "create_vchannel(name), which a first append does as well"),
    **dict.fromkeys(("delete_channel", "delete_stream", "delete_topic", "delete_vchannel"), "drop_vchannel(name)"),
    **dict.fromkeys(("ack", "commit_offset", "commit_offsets", "save"), "save() of a scanner that was read with cursor=…"),
    **dict.fromkeys(("groups", "offsets", "positions", "subscriptions"), "cursors()"),
    **dict.fromkeys(("flush", "fsync", "sync"), "nothing: an append is on the disk when it returns"),
    **dict.fromkeys(("metrics", "stats", "status"), "statistics()"),
}
"""Names of SQL, brokers and other logs, with what stands for them here."""


def missing_call(kind: type, name: str) -> str:
    """Returns the text of the error for a name that objects of this class do not have, with the call that was most likely meant."""
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return text
    if (meant := _GUESSES.get(name.lower())) is not None:
        return f"{text}; did you mean {meant}?"
    close = difflib.get_close_matches(name, [known for known in dir(kind) if not known.startswith("_")], n=1)
    return f"{text}; did you mean {close[0]}?" if close else text


_CURSOR: Final = dict.fromkeys(("group", "group_id", "consumer_group", "subscription", "offset_name", "durable"), "cursor=")
_KEYWORDS: Final = {
    "consume": {
        **_CURSOR,
        **dict.fromkeys(("workers", "threads", "tasks", "parallelism", "max_workers", "prefetch"), "concurrency="),
        **dict.fromkeys(("retries", "retry", "max_retries", "max_attempts", "tries"), "attempts="),
        **dict.fromkeys(("batch_size", "max_batch", "bulk"), "batch="),
        **dict.fromkeys(("delay", "delay_s", "retry_delay", "backoff"), "backoff_s="),
        **dict.fromkeys(("dlq", "dead_letter_queue", "dead_letter_topic", "deadletter"), "dead_letter="),
        **dict.fromkeys(("partition_key", "key_fn", "group_by"), "key= with order='key'"),
        **dict.fromkeys(("start", "deliver_policy", "offset", "start_from"), "log.seek(cursor, to=…) before it starts"),
    },
    "append": {
        **dict.fromkeys(("delay", "delay_s", "delay_ms", "eta", "at", "schedule_at"), "deliver_at=, a datetime with a time zone"),
        **dict.fromkeys(("headers", "attributes", "metadata", "tags"), "properties="),
        **dict.fromkeys(("topic", "channel", "stream", "queue", "subject"), "vchannel="),
        **dict.fromkeys(("data", "value", "body", "message"), "payload="),
        **dict.fromkeys((*WriteOptions.__struct_fields__, "message_type", "type"), "raw_append(Message(…), …), which takes it"),
        **dict.fromkeys(("key", "id", "message_id", "dedup_key", "dedupe", "idempotency"), "idempotency_key="),
    },
    "read": {
        **_CURSOR,
        **dict.fromkeys(
            ("limit", "count", "n", "max", "max_messages"), "nothing: leave the loop with break, or give deliver_policy=Last(n)"
        ),
        **dict.fromkeys(("start", "start_from", "begin", "offset", "since", "policy"), "deliver_policy= (All(), Latest(), StartAt(…), …)"),
        **dict.fromkeys(("position", "after"), "resume="),
        **dict.fromkeys(("tail", "live", "wait", "stream"), "follow="),
        **dict.fromkeys(("end", "until", "stop", "to"), "until_time_tick="),
        **dict.fromkeys(("callback", "on_message"), "handler="),
    },
}
"""Keywords of other logs and brokers, by call, with what stands for them here."""


def unknown_keywords(call: Callable[..., Any], names: Iterable[str]) -> TypeError:
    """Returns the error for keywords that a call does not take, with what was most likely meant."""
    name = next(iter(names))
    text = f"{call.__name__}() got an unexpected keyword argument {name!r}"
    if (meant := _KEYWORDS.get(call.__name__, {}).get(name.lower())) is None:
        accepted = [
            one.name for one in inspect.signature(call).parameters.values() if one.kind is not one.VAR_KEYWORD and one.name != "self"
        ]
        meant = next((f"{close}=" for close in difflib.get_close_matches(name, accepted, n=1)), None)
        if meant is None:
            return TypeError(f"{text}; it takes {', '.join(accepted)}")
    return TypeError(f"{text}; did you mean {meant}?")
