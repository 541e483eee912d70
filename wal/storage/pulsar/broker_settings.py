"""Broker settings: the settings of a Pulsar broker that endanger a log, and the largest frame that they allow. Pure.

A durable cursor makes Pulsar keep a log until it is truncated. A message TTL, or a backlog quota that evicts, advances that cursor by
itself. A quota that stops or refuses producers stops the log when it is full. When a subscription expires, or an idle topic is deleted, the
whole log is lost.

A frame above the broker's `maxMessageSize` (5 MiB unless its administrator chose another) must never reach the client: the client refuses
that frame alone and sends the frames after it, and the log would have a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.storage.pulsar.layout import FRAME_BYTES_LIMIT

GROUP_BYTES: Final = 1 << 20
"""Several one-megabyte frames in flight are faster than one frame of four megabytes."""
GROUP_TABLES_BYTES: Final = 1 << 19
"""The most bytes of the header and tables of a group's frame, in addition to its messages."""
METADATA_BYTES_MAX: Final = 64 << 10
"""The bytes below `maxMessageSize` for Pulsar's own metadata of a message: less than a hundred for a frame."""
METADATA_SHARE: Final = 16


class Allowances(msgspec.Struct, frozen=True):
    """Policies of Pulsar that could delete parts of the log, or block its writer, and that the caller accepts anyway."""

    message_ttl: bool = False
    backlog_quota: bool = False


def check_policies(
    topic: str,
    namespace: str,
    *,
    ttl_s: int | None,
    quotas: Mapping[str, Mapping[str, Any]] | None,
    subscription_expiry_min: int | None,
    inactive: Mapping[str, Any] | None,
    allowed: Allowances,
) -> None:
    """Raises InvalidArgumentError, naming the policy and the remedy, for a policy that is not `allowed`.

    `ttl_s`, `quotas`, `inactive`: as they apply to the topic; `subscription_expiry_min`: that of the namespace. None: not set.
    """
    if ttl_s and not allowed.message_ttl:
        raise InvalidArgumentError(
            f"{topic} has a message TTL of {ttl_s} s: Pulsar would delete messages of the log that are older, read or not. Remove it "
            f"(pulsar-admin namespaces remove-message-ttl {namespace}, or topicPolicies remove-message-ttl {topic}), or open the log "
            "with allow_message_ttl=True to accept the loss"
        )
    for kind, quota in sorted((quotas or {}).items()):
        size, seconds = quota.get("limitSize", quota.get("limit", -1)), quota.get("limitTime", -1)
        limit = size if kind == "destination_storage" else seconds
        if limit is None or limit < 0 or allowed.backlog_quota:
            continue
        what = f"{limit} bytes" if kind == "destination_storage" else f"{limit} s"
        policy = quota.get("policy")
        then = (
            "Pulsar would delete the oldest messages of the log"
            if policy == "consumer_backlog_eviction"
            else "Pulsar would take no more appends"
        )
        raise InvalidArgumentError(
            f"{topic} has a backlog quota of {what} ({kind}, {policy}): above it {then}. Remove it (pulsar-admin namespaces "
            f"remove-backlog-quota -t {kind} {namespace}, or topicPolicies remove-backlog-quota -t {kind} {topic}), or open the log with "
            "allow_backlog_quota=True to accept that"
        )
    if subscription_expiry_min and not allowed.message_ttl:
        raise InvalidArgumentError(
            f"subscriptions of {namespace} expire after {subscription_expiry_min} min: the subscription that holds the log would expire "
            "while the log is closed, and the log would be lost. Switch that off (pulsar-admin namespaces set-subscription-expiration-time "
            f"-t 0 {namespace}), or open the log with allow_message_ttl=True to accept the loss"
        )
    mode = (inactive or {}).get("inactiveTopicDeleteMode")
    # The log's subscription protects its topic only in the mode that looks at subscriptions.
    if inactive and inactive.get("deleteWhileInactive") and mode != "delete_when_no_subscriptions" and not allowed.message_ttl:
        raise InvalidArgumentError(
            f"{topic} is deleted when it is idle and its subscriptions have caught up ({mode}). Switch that off (pulsar-admin namespaces "
            f"set-inactive-topic-policies -m delete_when_no_subscriptions -t 60s -e {namespace}), or open the log with "
            "allow_message_ttl=True to accept the loss"
        )


def frame_bytes_limit(message_bytes_max: int) -> int:
    """Returns the largest frame for this `maxMessageSize`: FRAME_BYTES_LIMIT at most, so that no log depends on a broker's raised one."""
    metadata = min(METADATA_BYTES_MAX, max(message_bytes_max, 0) // METADATA_SHARE)
    return min(FRAME_BYTES_LIMIT, message_bytes_max - metadata)


def group_bytes(limit: int) -> int:
    """Returns the size at which a group commit is cut, for frames of at most `limit` bytes."""
    return min(GROUP_BYTES, max(limit - GROUP_TABLES_BYTES, limit // 2))
