"""The names that `wal.frame` exports."""

import wal.frame


def test_exported_names() -> None:
    assert sorted(wal.frame.__all__) == [
        "BLOCK_BYTES_MIN",
        "BROADCAST",
        "BodySource",
        "Columns",
        "CopyNames",
        "DEFAULT_TYPE",
        "EncodedFrame",
        "ExtTag",
        "FLAG_BODY",
        "FLAG_COMMIT",
        "FLAG_COPY",
        "FORMAT_VERSION",
        "FrameDraft",
        "FrameHeader",
        "FrameView",
        "HEADER_BYTES",
        "KEYED",
        "Payloads",
        "RECOVERED",
        "Record",
        "RecordColumns",
        "RunKind",
        "RunName",
        "RunRow",
        "SystemRecord",
        "TermStart",
        "decode_ext",
        "decode_key",
        "decode_txn",
        "encode_ext",
        "encode_frame",
        "encode_key",
        "encode_txn",
    ]
    assert all(hasattr(wal.frame, name) for name in wal.frame.__all__)
