"""The records of pchannels in the KV: their names, the incarnation of each, the term of its last writer, and where its recovery begins; and
whether the frames of the log are compressed.

A writer takes over a pchannel by raising its term with compare-and-swap; the backend fences the terms below. A checkpoint record is small:
the backend stores the state itself. The record is saved only if the term is still the writer's own. A writer that gives the pchannel away
may still replace the record that it saved last. So a fenced writer never moves the checkpoint of its successor.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from wal.errors import ChannelFencedError, FormatError, InvalidArgumentError, corruption
from wal.message import Natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wal.storage.kv import KVBase


PREFIX: Final = "pchannels/"
CHECKPOINT_PREFIX: Final = "checkpoints/"
COMPRESSION_KEY: Final = "compression"
"""The last value of the log's setting `compression`; a missing key means "none"."""
FORMAT_KEY: Final = PREFIX + "format"
"""Exists once the log has cursors that move with transactions. Earlier versions take it for the record of a pchannel and refuse the log."""
_FORMAT: Final = 2
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number that files store in 64 bits."""


class PChannelMeta(msgspec.Struct, frozen=True):
    """`incarnation` is the number in message ids; `term` is that of the last writer, 0 before the first."""

    name: str
    incarnation: Number
    term: Number


class CheckpointRecord(msgspec.Struct, frozen=True):
    """A checkpoint saved in `term`: recovery begins at `position` with the state stored for position `state` (None: without any)."""

    term: Natural
    position: Natural
    state: Natural | None = None


def names_in(keys: Iterable[str]) -> list[str]:
    """Returns the names of the pchannels whose records have these keys of the metadata, sorted; other keys are skipped."""
    return sorted(key.removeprefix(PREFIX) for key in keys if key.startswith(PREFIX) and key != FORMAT_KEY)


def pchannel_names(count: int) -> list[str]:
    """Returns the names of this many pchannels: p0, p1, …"""
    return [f"p{number}" for number in range(count)]


def check_choice(pchannel: str | None, pchannels: Collection[str]) -> None:
    """Raises InvalidArgumentError for a pchannel that a caller chose for a vchannel, unless it is one of these, or None."""
    if pchannel is not None and pchannel not in pchannels:
        raise InvalidArgumentError(f"pchannel {pchannel!r} does not exist: choose one of {', '.join(pchannels)}")


async def load_pchannels(kv: KVBase) -> dict[str, PChannelMeta]:
    """Returns the records of all pchannels by name, in the order of their numbers."""
    keys, values = await kv.load_with_prefix(PREFIX)
    if FORMAT_KEY in keys:
        at = keys.index(FORMAT_KEY)
        del keys[at]
        if (saved := values.pop(at)) != str(_FORMAT):
            raise FormatError(f"the metadata of the log have format {saved[:40]}, known here is {_FORMAT}: upgrade to open the log")
    with corruption("the pchannel records in the KV cannot be read", expected=PREFIX):
        metas = [_decoder.decode(value) for value in values]
        if sorted(PREFIX + meta.name for meta in metas) != sorted(keys):
            raise ValueError("a record has the key of another pchannel")
        metas.sort(key=lambda meta: _number(meta.name))
    return {meta.name: meta for meta in metas}


async def load_pchannel(kv: KVBase, name: str) -> PChannelMeta:
    """Returns the current record of one pchannel. Raises CorruptionError if it is missing or cannot be read."""
    with corruption("the record of a pchannel cannot be read", expected=PREFIX + name):
        text = await kv.load(PREFIX + name)
    return decode(name, text)


async def raise_format(kv: KVBase) -> None:
    """Records that the log has cursors that move with transactions; versions without that feature refuse it from then on. Idempotent."""
    await kv.save(FORMAT_KEY, str(_FORMAT))


def _number(name: str) -> int:
    """Returns the number in a pchannel's name; raises ValueError for any other name, which may not be a safe name of a folder."""
    number = int(name.removeprefix("p"))
    if name != f"p{number}" or number < 0:
        raise ValueError(f"no pchannel {name!r}")
    return number


def new_incarnation() -> int:
    """Returns a unique number for a new incarnation of a log: 62 random bits, never 0."""
    return secrets.randbits(62) + 1


async def create_pchannel(kv: KVBase, meta: PChannelMeta) -> None:
    """Saves the record of a pchannel whose log has just been created; its recovery begins at the log's beginning."""
    saves = {CHECKPOINT_PREFIX + meta.name: _encoder.encode(CheckpointRecord(meta.term, 0)).decode()}
    if not await kv.compare_and_swap(PREFIX + meta.name, None, encode(meta), saves=saves):
        raise ChannelFencedError(f"pchannel {meta.name} was created by another writer meanwhile: open the log again")


async def raise_term(kv: KVBase, meta: PChannelMeta) -> PChannelMeta:
    """Takes over the pchannel in the next term; raises ChannelFencedError if another writer did so at the same time."""
    raised = msgspec.structs.replace(meta, term=meta.term + 1)
    if not await kv.compare_and_swap(PREFIX + meta.name, encode(meta), encode(raised)):
        raise ChannelFencedError(
            f"pchannel {meta.name} was taken over by another writer while term {raised.term} was being claimed: open the log again"
        )
    return raised


async def renew_incarnations(kv: KVBase, metas: Mapping[str, PChannelMeta], incarnations: Mapping[str, int]) -> None:
    """Gives all these pchannels new incarnations, at once; raises ChannelFencedError if another writer took one over meanwhile."""
    renewed = {PREFIX + name: encode(msgspec.structs.replace(meta, incarnation=incarnations[name])) for name, meta in metas.items()}
    if await kv.change_if({PREFIX + name: encode(meta) for name, meta in metas.items()}, saves=renewed) is not None:
        raise ChannelFencedError("another writer has taken the log over meanwhile: nothing was changed; close it and try again")


async def load_checkpoint(kv: KVBase, pchannel: str) -> CheckpointRecord | None:
    """Returns the checkpoint record of this pchannel; None if the log is older than checkpoints, or its record was removed."""
    key = CHECKPOINT_PREFIX + pchannel
    if (text := await kv.find(key)) is None:
        return None
    with corruption("the checkpoint record in the KV cannot be read", expected=key):
        return _checkpoint_decoder.decode(text)


def checkpoint_records(metadata: Mapping[str, str]) -> dict[str, CheckpointRecord]:
    """Returns the checkpoint that counts, by pchannel. Raises CorruptionError for a record that cannot be read."""
    records: dict[str, CheckpointRecord] = {}
    for key, value in metadata.items():
        if key.startswith(CHECKPOINT_PREFIX):
            with corruption(f"the checkpoint record {key!r} cannot be read", expected="a checkpoint record"):
                records[key.removeprefix(CHECKPOINT_PREFIX)] = _checkpoint_decoder.decode(value)
    return records


async def save_checkpoint(kv: KVBase, meta: PChannelMeta, record: CheckpointRecord) -> None:
    """Saves where recovery begins, if the pchannel's record is still `meta`; raises ChannelFencedError if another writer took over.

    Both happen in one operation: once a writer has raised the term, an earlier one moves the record by `hand_over_checkpoint` alone. It
    frees nothing for that, so the later one may begin at either.
    """
    own = encode(meta)
    saves = {CHECKPOINT_PREFIX + meta.name: _encoder.encode(record).decode()}
    if not await kv.compare_and_swap(PREFIX + meta.name, own, own, saves=saves):
        raise ChannelFencedError(
            f"pchannel {meta.name} was taken over by another writer; the checkpoint of term {record.term} is not saved"
        )


async def hand_over_checkpoint(kv: KVBase, pchannel: str, saved: CheckpointRecord, record: CheckpointRecord) -> bool:
    """Saves where recovery begins in place of `saved`, the record that the caller loaded or saved last; returns whether that was still
    there.

    For a writer whose successor has the term already, but has not saved a checkpoint of its own yet. The state is that of a position of the
    same log, so the successor may begin there or, if it has read `saved` already, at the earlier position.
    """
    text = _encoder.encode(record).decode()
    return await kv.compare_and_swap(CHECKPOINT_PREFIX + pchannel, _encoder.encode(saved).decode(), text)


async def load_compression(kv: KVBase) -> bool:
    """Returns whether new frames of the log are compressed. Raises FormatError for a codec that this version lacks."""
    if (saved := await kv.find(COMPRESSION_KEY)) is None:
        return False
    if saved not in ("none", "zstd"):
        raise FormatError(f"the log is written with compression {saved!r}, which this version does not know: upgrade to write it")
    return saved == "zstd"


async def save_compression(kv: KVBase, compression: str) -> None:
    """Saves the setting with the log, for every later opening of a pchannel."""
    await kv.save(COMPRESSION_KEY, compression)


def check_count(count: int | None, present: int) -> int:
    """Returns the number of pchannels that the log will have; raises InvalidArgumentError if `count` is below `present`."""
    if count is not None and count < present:
        raise InvalidArgumentError(
            f"pchannels={count}, but this log was created with {present}: their number can grow, never shrink; "
            f"leave the setting out or give at least {present}"
        )
    return count or present or 1


def decode(name: str, text: str) -> PChannelMeta:
    """Returns the record of a pchannel in this text. Raises CorruptionError if it cannot be read."""
    with corruption("the record of a pchannel cannot be read", expected=PREFIX + name):
        meta = _decoder.decode(text)
        if meta.name != name:
            raise ValueError(f"it is the record of pchannel {meta.name!r}")
    return meta


def encode(meta: PChannelMeta) -> str:
    """Returns the text of a pchannel's record."""
    return _encoder.encode(meta).decode()


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(PChannelMeta)
_checkpoint_decoder: Final = msgspec.json.Decoder(CheckpointRecord)
