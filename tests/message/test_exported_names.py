"""The names that `wal.message` and its codec export, and what their import loads."""

import subprocess
import sys

import wal.message
from wal.message import codec


def test_exported_names() -> None:
    assert sorted(wal.message.__all__) == [
        "AppendResult",
        "BroadcastHeader",
        "CopyOutcomes",
        "FORM_JOURNAL",
        "FORM_PULSAR",
        "ForgottenResult",
        "ImmutableMessage",
        "ImmutableTxnMessage",
        "Lineage",
        "LogPosition",
        "Message",
        "MessageID",
        "MessageType",
        "MixedCopies",
        "Natural",
        "Origin",
        "PackedPosition",
        "RESERVED_PREFIX",
        "Reserved",
        "ResourceKey",
        "Restore",
        "ScheduledMessage",
        "ScheduledResult",
        "TimeTickMessage",
        "TxnContext",
        "TypeProperties",
        "check_properties",
        "decode_properties",
        "encode_properties",
        "packed",
        "properties_count",
        "properties_size",
        "type_properties",
        "unpacked",
    ]
    assert all(hasattr(wal.message, name) for name in wal.message.__all__)


def test_exported_names_of_the_codec() -> None:
    assert vars(codec).keys() >= {"WirePart", "id_to_wire", "message_from_wire", "to_wire", "txn_to_wire"}


def test_importing_the_messages_does_not_import_protobuf() -> None:
    program = "import sys, wal.message; print(any(name.startswith('google.protobuf') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
