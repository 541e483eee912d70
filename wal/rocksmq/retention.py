"""Which pages retention drops. Pure: a channel's numbers in, a count out."""

from __future__ import annotations

from wal.rocksmq.channel import Channel
from wal.rocksmq.settings import RocksMQSettings

__all__ = ["pages_to_drop"]


def pages_to_drop(channel: Channel, settings: RocksMQSettings, *, now_us: int) -> int:
    """How many of the channel's oldest pages go now: too old, or too much; what a group has not consumed stays unless told so.

    A channel without groups keeps everything (nobody has consumed it), as in the system of the seeds, unless
    `retention_unconsumed`. The page that is being filled always stays.
    """
    if settings.retention_bytes is None and settings.retention_s is None:
        return 0
    consumed, held, count = channel.consumed(), channel.size, 0
    for page in channel.pages:
        old = settings.retention_s is not None and page.filled_us + settings.retention_s * 1e6 <= now_us
        large = settings.retention_bytes is not None and held > settings.retention_bytes
        if not (old or large) or not (settings.retention_unconsumed or page.last_id <= consumed):
            break
        held -= page.bytes
        count += 1
    return count
