"""KVStatistics: what a KV has done since it was opened. Plain numbers, a copy."""

from __future__ import annotations

import msgspec

__all__ = ["KVStatistics"]


class KVStatistics(msgspec.Struct, frozen=True):
    """Counted since opening.

    `revision`: changes committed. `operations`: calls carried out, reads and failed ones included. `commits`: transactions of the
    store; fewer than changes when calls were committed as a group. `waiting`: calls not answered yet. `watches`: open watches.
    """

    revision: int = 0
    operations: int = 0
    commits: int = 0
    waiting: int = 0
    watches: int = 0
