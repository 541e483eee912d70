"""The records of a cluster in etcd: its log and settings, its nodes, and the orders of its operator.

    cluster/log             the log and its settings, saved by the first coordinator; later ones may leave them out. It is kept bare, with a
                            checksum of its own, since earlier versions read the format there (`wal.storage.kv.records`)
    cluster/leader/…        the candidates of the coordinators' election; the value of each is its address
    leader-mark             empty; each change of the leader puts it as well, see `wal.storage.kv.etcd.LeaderFence`
    cluster/nodes/…         the live nodes, each under the number of its lease, with which etcd removes it
    cluster/drained/…       the nodes that get no pchannels, by the same number
    cluster/evicted/…       the nodes whose lease a leader revokes, by the same number, each with the lifetime of its lease in s
    cluster/paused          exists while the balancer moves nothing

The record of a cluster also excludes other writers: no embedded writer opens a log that belongs to a cluster.
"""

from __future__ import annotations

from typing import Any, Final

import google_crc32c
import msgspec

from wal.channels.pchannels import load_pchannels
from wal.errors import corruption
from wal.message import Natural
from wal.storage.kv import KVBase

LOG_KEY: Final = "cluster/log"
LEADER: Final = "cluster/leader"
NODES: Final = "cluster/nodes/"
DRAINED: Final = "cluster/drained/"
EVICTED: Final = "cluster/evicted/"
PAUSED: Final = "cluster/paused"
TICKS: Final = "timestamp/nodes/"
"""The limits of the nodes' ticks, each under the server id of its node."""
MOVING_CURSORS: Final = 2
"""The format from which on cursors move with transactions: a node of an earlier one refuses a log that has such a cursor."""
CHECKED_RECORDS: Final = 3
"""The format from which on the records in etcd have checksums: the leader adds them when no earlier node lives."""
PATTERN_CURSORS: Final = 4
"""The format from which on the nodes keep what cursors of patterns need: a node of an earlier one truncates past them."""
FORMAT: Final = PATTERN_CURSORS
"""The format that this version writes, and the newest that it reads. A format is used once no live node is older."""


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The log of a cluster: its location on Pulsar, the settings that belong to the log, and its largest frame.

    `format` is that of all records and frames. `crc32c` is that of the record without this field, from CHECKED_RECORDS on.
    """

    log: str
    settings: dict[str, Any]
    frame_bytes_max: Natural
    format: Natural
    crc32c: str = ""


class NodeRecord(msgspec.Struct, frozen=True):
    """A live node: its address, its version for people, the newest format that it writes, and whether it gives its pchannels up."""

    server_id: Natural
    address: str
    version: str
    format: Natural
    stopping: bool = False


async def load_cluster(kv: KVBase) -> ClusterRecord | None:
    """Returns the record of the cluster at this root, or None without a cluster. Raises CorruptionError if it cannot be read."""
    if (text := await kv.find(LOG_KEY)) is None:
        return None
    with corruption("the record of the cluster cannot be read", expected=LOG_KEY):
        record = _cluster.decode(text)
        if (record.crc32c or record.format >= CHECKED_RECORDS) and encode(record) != text:
            raise ValueError(f"it does not match its CRC32C {record.crc32c!r}")
    return record


async def load_created_cluster(kv: KVBase) -> ClusterRecord | None:
    """Returns the record of the cluster once its first leader has created all pchannels, one after another; None before that.

    What a node knows of the pchannels when it starts has to be whole: among them it finds the place of a vchannel that does not exist yet.
    """
    record = await load_cluster(kv)
    count = 0 if record is None else len(await load_pchannels(kv))
    return record if record is not None and count >= (record.settings.get("pchannels") or 1) else None


async def create_cluster(kv: KVBase, record: ClusterRecord) -> bool:
    """Saves the record of a cluster, unless there is a record already; returns whether it was saved."""
    return await kv.compare_and_swap(LOG_KEY, None, encode(record))


def encode(record: ClusterRecord | NodeRecord) -> str:
    """Returns the text of a record."""
    if isinstance(record, ClusterRecord) and (record.crc32c or record.format >= CHECKED_RECORDS):
        bare = _encoder.encode(msgspec.structs.replace(record, crc32c=""))
        record = msgspec.structs.replace(record, crc32c=f"{google_crc32c.value(bare):08x}")
    return _encoder.encode(record).decode()


def node_key(server_id: int) -> str:
    """Returns the key of a node's record."""
    return f"{NODES}{server_id:016x}"


def node_from(key: str, text: str) -> NodeRecord:
    """Returns the node whose record is on `key`. Raises CorruptionError if it cannot be read."""
    with corruption("the record of a node cannot be read", expected=key):
        record = _node.decode(text)
        if node_key(record.server_id) != key:
            raise ValueError(f"it is the record of node {record.server_id:x}")
    return record


def evicted_key(server_id: int) -> str:
    """Returns the key under which a leader saves that it evicts a node."""
    return f"{EVICTED}{server_id:016x}"


def ticks_key(server_id: int) -> str:
    """Returns the key under which the oracle of this node saves its limit."""
    return f"{TICKS}{server_id:016x}"


_encoder: Final = msgspec.json.Encoder(order="sorted")
_cluster: Final = msgspec.json.Decoder(ClusterRecord)
_node: Final = msgspec.json.Decoder(NodeRecord)
