"""PChannel records in the KV: which pchannels there are, which life of each, and the term of its last writer.

A writer takes a pchannel over by raising its term with compare-and-swap; the backend fences the terms below.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from wal.channels.checkpoint_record import CheckpointRecord, checkpoint_key, encode_checkpoint
from wal.errors import ChannelFencedError, CorruptionError, InvalidArgumentError

if TYPE_CHECKING:
    from wal.kv import KVBase

__all__ = ["PChannelMeta", "create_pchannel", "load_pchannels", "pchannel_names", "raise_term", "save_checkpoint"]

PREFIX: Final = "pchannels/"
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""What stands in files as 64 bits."""


class PChannelMeta(msgspec.Struct, frozen=True):
    """`incarnation`: one number for each life of the log, in its message ids. `term`: of the last writer, 0 before the first."""

    name: str
    incarnation: Number
    term: Number


def pchannel_names(count: int) -> list[str]:
    """The names of so many pchannels: p0, p1, …"""
    return [f"p{number}" for number in range(count)]


async def load_pchannels(kv: KVBase) -> dict[str, PChannelMeta]:
    """All pchannels by name, in the order of their numbers."""
    keys, values = await kv.load_with_prefix(PREFIX)
    try:
        metas = [_decoder.decode(value) for value in values]
        if sorted(PREFIX + meta.name for meta in metas) != sorted(keys):
            raise ValueError("a record stands under the key of another")
        metas.sort(key=lambda meta: _number(meta.name))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CorruptionError(f"the pchannel records in the KV cannot be read: {error}", expected=PREFIX) from error
    return {meta.name: meta for meta in metas}


def _number(name: str) -> int:
    """Which pchannel this name is that of; ValueError for none of `pchannel_names`, which would be no safe name of a folder."""
    number = int(name.removeprefix("p"))
    if name != f"p{number}" or number < 0:
        raise ValueError(f"there is no pchannel {name!r}")
    return number


def new_incarnation() -> int:
    """A number for a new life of a log, unlike any before (63 random bits, never 0)."""
    return secrets.randbits(62) + 1


async def create_pchannel(kv: KVBase, meta: PChannelMeta) -> None:
    """Saves the record of a pchannel whose log has just been made; its recovery begins where it does."""
    saves = {checkpoint_key(meta.name): encode_checkpoint(CheckpointRecord(meta.term, 0))}
    if not await kv.compare_and_swap(PREFIX + meta.name, None, _encode(meta), saves=saves):
        raise ChannelFencedError(f"pchannel {meta.name} was made by another writer meanwhile: open the log again")


async def raise_term(kv: KVBase, meta: PChannelMeta) -> PChannelMeta:
    """Takes the pchannel over in the next term; ChannelFencedError when someone else did at the same time."""
    raised = msgspec.structs.replace(meta, term=meta.term + 1)
    if not await kv.compare_and_swap(PREFIX + meta.name, _encode(meta), _encode(raised)):
        raise ChannelFencedError(
            f"pchannel {meta.name} was taken over by another writer while term {raised.term} was being claimed: open the log again"
        )
    return raised


async def save_checkpoint(kv: KVBase, meta: PChannelMeta, record: CheckpointRecord) -> None:
    """Saves where recovery begins, if the pchannel's record is still `meta`; ChannelFencedError when another writer took over.

    Both happen in one operation: a writer that was overtaken never moves the checkpoint of the one that did, and a writer that has
    raised the term reads one that stays.
    """
    own = _encode(meta)
    saves = {checkpoint_key(meta.name): encode_checkpoint(record)}
    if not await kv.compare_and_swap(PREFIX + meta.name, own, own, saves=saves):
        raise ChannelFencedError(
            f"pchannel {meta.name} was taken over by another writer; the checkpoint of term {record.term} is not saved"
        )


def check_count(wanted: int | None, present: int) -> int:
    """How many pchannels there shall be; fewer than there are is an InvalidArgumentError."""
    if wanted is not None and wanted < present:
        raise InvalidArgumentError(
            f"pchannels={wanted}, but this log was made with {present}: their number can grow, never shrink; "
            f"leave the setting out or give at least {present}"
        )
    return wanted or present or 1


def _encode(meta: PChannelMeta) -> str:
    return _encoder.encode(meta).decode()


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(PChannelMeta)
