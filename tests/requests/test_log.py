"""What a client learns of a log: the settings that belong to the log."""

from __future__ import annotations

from wal.requests.log import LogSettings
from wal.rpc.api import requests_pb2
from wal.rpc.converter import struct_from_proto, struct_to_proto
from wal.settings import Settings


def test_every_setting_of_a_log_travels() -> None:
    # The settings that do not concern a client: they belong to the process that has the log, or to its storage.
    of_the_process = {
        "pchannels", "segment_bytes", "group_readable", "kv", "pulsar_admin_url", "pulsar_token", "pulsar_tls_authority", "token",
        "allow_message_ttl", "allow_backlog_quota", "write_path", "compression", "archive", "archive_poll_s", "as_of",
    }  # fmt: skip

    assert set(LogSettings.__struct_fields__) | of_the_process == set(Settings.__struct_fields__)
    other = Settings(
        create_vchannels=False, vchannels_max=7, message_bytes_max=1 << 16, txn_bytes_max=1 << 21, txn_bodies_max=9, txn_keepalive=3.5,
        open_txn_bytes_max=1 << 23, in_flight_bytes_max=1 << 24, time_tick_interval_s=0.5, idempotency_window_count=11,
        idempotency_window_s=12.5, producers_max=13, scheduled_max=18, scheduled_bytes_max=1 << 19,
        broadcast_tasks_max=14, broadcast_vchannels_max=15, retention_bytes=1 << 30,
        retention_s=16.5, cursor_lag_bytes_max=1 << 29, cursor_age_max_s=17.5,
    )  # fmt: skip
    for settings in (Settings(), other):
        message = struct_to_proto(LogSettings.of(settings), requests_pb2.LogSettings)
        arrived = struct_from_proto(LogSettings, requests_pb2.LogSettings.FromString(message.SerializeToString()))
        assert arrived.settings() == settings
