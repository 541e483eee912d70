"""All services of a node. A new one is a file of its own whose `handlers()` are added here."""

from __future__ import annotations

from typing import Any

from wal.engine.local.log import LocalLog
from wal.network import Method
from wal.node.consume import ConsumeService
from wal.node.discovery import Discovery
from wal.node.draining import Draining
from wal.node.hosted import Hosted
from wal.node.log_service import LogService
from wal.node.pchannel_service import PChannelService
from wal.node.produce_service import ProduceService
from wal.node.states import States
from wal.rpc.serving import Handler
from wal.settings import ServerBounds

__all__ = ["all_handlers"]


def all_handlers(
    log: LocalLog,
    hosted: Hosted,
    draining: Draining,
    states: States,
    *,
    address: str,
    bounds: ServerBounds,
) -> dict[Method[Any, Any], Handler]:
    """Returns the handlers of all methods that this process serves.

    `log` is the open log, `hosted` the pchannels of it that are here. What a service does for a pchannel it asks of `hosted` first; a
    stream that lasts asks `draining` to be told when the node stops. Clients reach the node at `address`.
    """
    return {
        **states.handlers(),
        **Discovery(hosted, draining, server_id=states.server_id, address=address).handlers(),
        **ProduceService(log, hosted, draining, bounds).handlers(),
        **ConsumeService(log, hosted, draining).handlers(),
        **LogService(log, draining).handlers(),
        **PChannelService(log, hosted, draining).handlers(),
    }
