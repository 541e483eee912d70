"""The table of message types is compared with that of Milvus, which is written out here again."""

import pytest

from wal.message import MessageType, TypeProperties, type_properties


def test_numbers() -> None:
    numbers = """
        0 UNKNOWN · 1 TIME_TICK · 2 INSERT · 3 DELETE · 4 FLUSH · 5 CREATE_COLLECTION · 6 DROP_COLLECTION · 7 CREATE_PARTITION ·
        8 DROP_PARTITION · 9 MANUAL_FLUSH · 10 CREATE_SEGMENT · 11 IMPORT · 12 SCHEMA_CHANGE · 13 ALTER_COLLECTION · 14 ALTER_LOAD_CONFIG ·
        15 DROP_LOAD_CONFIG · 16 CREATE_DATABASE · 17 ALTER_DATABASE · 18 DROP_DATABASE · 19 ALTER_ALIAS · 20 DROP_ALIAS · 21 RESTORE_RBAC ·
        22 ALTER_USER · 23 DROP_USER · 24 ALTER_ROLE · 25 DROP_ROLE · 26 ALTER_USER_ROLE · 27 DROP_USER_ROLE · 28 ALTER_PRIVILEGE ·
        29 DROP_PRIVILEGE · 30 ALTER_PRIVILEGE_GROUP · 31 DROP_PRIVILEGE_GROUP · 32 ALTER_RESOURCE_GROUP · 33 DROP_RESOURCE_GROUP ·
        34 CREATE_INDEX · 35 ALTER_INDEX · 36 DROP_INDEX · 37 FLUSH_ALL · 38 TRUNCATE_COLLECTION · 700 ALTER_WAL ·
        800 ALTER_REPLICATE_CONFIG · 900 BEGIN_TXN · 901 COMMIT_TXN · 902 ROLLBACK_TXN · 910 ABORT_BROADCAST · 999 TXN
    """

    expected = {name: int(number) for number, name in (entry.split() for entry in numbers.split("·"))}
    assert {message_type.name: int(message_type) for message_type in MessageType} == expected


@pytest.mark.parametrize("message_type", MessageType, ids=lambda message_type: message_type.name)
def test_attributes(message_type: MessageType) -> None:
    system = {"UNKNOWN", "TIME_TICK", "BEGIN_TXN", "COMMIT_TXN", "ROLLBACK_TXN", "TXN"}
    self_controlled = {"TIME_TICK", "CREATE_SEGMENT", "FLUSH", "ABORT_BROADCAST"}
    exclusive = {
        "CREATE_COLLECTION",
        "DROP_COLLECTION",
        "TRUNCATE_COLLECTION",
        "CREATE_PARTITION",
        "DROP_PARTITION",
        "MANUAL_FLUSH",
        "SCHEMA_CHANGE",
        "ALTER_COLLECTION",
        "FLUSH_ALL",
        "ALTER_WAL",
        "ALTER_REPLICATE_CONFIG",
    }
    dml = {"INSERT", "DELETE"}

    assert type_properties(message_type) == TypeProperties(
        system=message_type.name in system,
        self_controlled=message_type.name in self_controlled,
        exclusive=message_type.name in exclusive,
        dml=message_type.name in dml,
        broadcaster=message_type.name == "ABORT_BROADCAST",
    )


@pytest.mark.parametrize("number", [-1, 39, 903, 1000, 1 << 40])
def test_unknown_number_is_refused_like_unknown(number: int) -> None:
    assert type_properties(number) == TypeProperties(system=True)
    assert type_properties(int(MessageType.INSERT)) is type_properties(MessageType.INSERT)
