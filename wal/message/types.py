"""Message types and the meaning of each to the log.

Owns: the numbers (those of Milvus, so that a message keeps its type on any wire) and one table of attributes. Code that refuses or accepts
a type reads its row here; no other module has a list of types.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class MessageType(enum.IntEnum):
    """The type of a message. The numbers 0 to 38 and 700 to 999 are those of Milvus, except 910, which is ours."""

    UNKNOWN = 0
    TIME_TICK = 1
    INSERT = 2
    DELETE = 3
    FLUSH = 4
    CREATE_COLLECTION = 5
    DROP_COLLECTION = 6
    CREATE_PARTITION = 7
    DROP_PARTITION = 8
    MANUAL_FLUSH = 9
    CREATE_SEGMENT = 10
    IMPORT = 11
    SCHEMA_CHANGE = 12
    ALTER_COLLECTION = 13
    ALTER_LOAD_CONFIG = 14
    DROP_LOAD_CONFIG = 15
    CREATE_DATABASE = 16
    ALTER_DATABASE = 17
    DROP_DATABASE = 18
    ALTER_ALIAS = 19
    DROP_ALIAS = 20
    RESTORE_RBAC = 21
    ALTER_USER = 22
    DROP_USER = 23
    ALTER_ROLE = 24
    DROP_ROLE = 25
    ALTER_USER_ROLE = 26
    DROP_USER_ROLE = 27
    ALTER_PRIVILEGE = 28
    DROP_PRIVILEGE = 29
    ALTER_PRIVILEGE_GROUP = 30
    DROP_PRIVILEGE_GROUP = 31
    ALTER_RESOURCE_GROUP = 32
    DROP_RESOURCE_GROUP = 33
    CREATE_INDEX = 34
    ALTER_INDEX = 35
    DROP_INDEX = 36
    FLUSH_ALL = 37
    TRUNCATE_COLLECTION = 38
    ALTER_WAL = 700
    ALTER_REPLICATE_CONFIG = 800
    BEGIN_TXN = 900
    COMMIT_TXN = 901
    ROLLBACK_TXN = 902
    ABORT_BROADCAST = 910
    TXN = 999


class TypeProperties(msgspec.Struct, frozen=True, gc=False):
    """The attributes of a type.

    `system`: only the WAL writes it; a client's append of it is refused, and a type filter can neither name nor drop it. `self_controlled`:
    the system writes it for its own bookkeeping; a replica does not copy it. `exclusive`: it is ordered against everything on its vchannel,
    and fails the transactions that are open there. `dml`: it is data, the only kind that a transaction may contain. `broadcaster`: only the
    broadcaster writes it; a client's append of it is refused too, but a type filter can name and drop it.
    """

    system: bool = False
    self_controlled: bool = False
    exclusive: bool = False
    dml: bool = False
    broadcaster: bool = False

    @property
    def appendable(self) -> bool:
        """Whether a client may append messages of this type."""
        return not (self.system or self.broadcaster)


_ORDINARY: Final = TypeProperties()

_PROPERTIES: Final[dict[MessageType, TypeProperties]] = {
    MessageType.UNKNOWN: TypeProperties(system=True),
    MessageType.TIME_TICK: TypeProperties(system=True, self_controlled=True),
    MessageType.BEGIN_TXN: TypeProperties(system=True),
    MessageType.COMMIT_TXN: TypeProperties(system=True),
    MessageType.ROLLBACK_TXN: TypeProperties(system=True),
    MessageType.TXN: TypeProperties(system=True),
    MessageType.INSERT: TypeProperties(dml=True),
    MessageType.DELETE: TypeProperties(dml=True),
    MessageType.FLUSH: TypeProperties(self_controlled=True),
    MessageType.CREATE_SEGMENT: TypeProperties(self_controlled=True),
    MessageType.ABORT_BROADCAST: TypeProperties(self_controlled=True, broadcaster=True),
    MessageType.CREATE_COLLECTION: TypeProperties(exclusive=True),
    MessageType.DROP_COLLECTION: TypeProperties(exclusive=True),
    MessageType.TRUNCATE_COLLECTION: TypeProperties(exclusive=True),
    MessageType.CREATE_PARTITION: TypeProperties(exclusive=True),
    MessageType.DROP_PARTITION: TypeProperties(exclusive=True),
    MessageType.MANUAL_FLUSH: TypeProperties(exclusive=True),
    MessageType.SCHEMA_CHANGE: TypeProperties(exclusive=True),
    MessageType.ALTER_COLLECTION: TypeProperties(exclusive=True),
    MessageType.FLUSH_ALL: TypeProperties(exclusive=True),
    MessageType.ALTER_WAL: TypeProperties(exclusive=True),
    MessageType.ALTER_REPLICATE_CONFIG: TypeProperties(exclusive=True),
}

_TABLE: Final[dict[int, TypeProperties]] = {int(t): _PROPERTIES.get(t, _ORDINARY) for t in MessageType}


def type_properties(message_type: MessageType | int) -> TypeProperties:
    """Returns the attributes of a type; for an unknown number those of `UNKNOWN`, which is refused as a system type."""
    return _TABLE.get(message_type, _PROPERTIES[MessageType.UNKNOWN])
