"""Policies of Pulsar that endanger a log are refused when it is opened: on a real Pulsar, set as administrators set them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.frames import INCARNATION
from tests.storage.pulsar.conftest import admin, location_of
from wal import Message, open_wal
from wal.errors import FormatError, InvalidArgumentError
from wal.storage.kv import MemoryKV
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.broker_settings import Allowances, check_policies


async def opens(address: PulsarAddress, allowed: Allowances | None = None) -> None:
    """Creates a log and opens it."""
    backend = PulsarBackend(address, MemoryKV(), allowed=allowed)
    try:
        await backend.create("p", incarnation=INCARNATION)
        await (await backend.open("p", incarnation=INCARNATION, term=1)).close()
    finally:
        await backend.close()


async def test_message_ttl(address: PulsarAddress) -> None:
    admin(address, "POST", f"namespaces/{address.path}/messageTTL", 3600)
    with pytest.raises(InvalidArgumentError, match=r"TTL of 3600 s.*remove-message-ttl.*allow_message_ttl=True"):
        await opens(address)
    await opens(address, Allowances(message_ttl=True))


@pytest.mark.parametrize(
    ("policy", "says"), [("producer_request_hold", "take no more appends"), ("consumer_backlog_eviction", "delete the oldest messages")]
)
async def test_backlog_quota(address: PulsarAddress, policy: str, says: str) -> None:
    quota = {"limitSize": 1 << 20, "limitTime": -1, "policy": policy}
    admin(address, "POST", f"namespaces/{address.path}/backlogQuota?backlogQuotaType=destination_storage", quota)
    with pytest.raises(InvalidArgumentError, match=rf"{1 << 20} bytes.*{says}.*remove-backlog-quota.*allow_backlog_quota"):
        await opens(address)
    await opens(address, Allowances(backlog_quota=True))


async def test_subscriptions_that_expire(address: PulsarAddress) -> None:
    admin(address, "POST", f"namespaces/{address.path}/subscriptionExpirationTime", 5)
    with pytest.raises(InvalidArgumentError, match="expire after 5 min"):
        await opens(address)


async def test_deleted_topics_after_reading_are_reported(address: PulsarAddress) -> None:
    policies = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
    admin(address, "POST", f"namespaces/{address.path}/inactiveTopicPolicies", policies)
    with pytest.raises(InvalidArgumentError, match="deleted when it is idle"):
        await opens(address)


async def test_deduplication_is_switched_off_for_the_log_alone(address: PulsarAddress, tmp_path: Path) -> None:
    admin(address, "POST", f"namespaces/{address.path}/deduplication", True)
    location, settings = location_of(address, tmp_path / "kv")
    async with open_wal(location, **settings) as log:
        for number in range(5):
            await log.raw_append(Message("v", b"%d" % number))
    assert admin(address, "GET", f"persistent/{address.path}/p0/deduplicationEnabled?applied=true") == b"false"
    assert admin(address, "GET", f"namespaces/{address.path}/deduplication") == b"true"


async def test_unknown_log_is_not_overwritten(address: PulsarAddress, tmp_path: Path) -> None:
    location, settings = location_of(address, tmp_path / "one")
    async with open_wal(location, **settings) as log:
        await log.raw_append(Message("v", b"1"))
    with pytest.raises(FormatError, match="of which the metadata knows nothing"):
        await open_wal(location, **{**settings, "kv": str(tmp_path / "other")})


def test_harmless_policies_are_accepted(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"ttl_s": 0},
        {"quotas": {"destination_storage": {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}}},
        {"quotas": {"message_age": {"limitSize": 5, "limitTime": -1, "policy": "producer_request_hold"}}},
        {"subscription_expiry_min": 0},
        {"inactive": {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "deleteWhileInactive": True}},
        {"inactive": {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "deleteWhileInactive": False}},
    ]
    for set_ in cases:
        with subtests.test(repr(set_)):
            nothing: dict[str, Any] = {"ttl_s": None, "quotas": None, "subscription_expiry_min": None, "inactive": None}
            check_policies("t", "public/n", allowed=Allowances(), **{**nothing, **set_})
