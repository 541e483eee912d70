"""The text of the error for a call that an open log does not have: what it is called here, for people who know another name. Pure."""

from __future__ import annotations

import difflib
from typing import Final

_APPEND: Final = "append(vchannel, payload), append_nowait, append_bulk or append_txn"
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
