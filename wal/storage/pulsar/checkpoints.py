"""Checkpoints: the states with which recovery begins, in a separate topic beside the log's.

Owns: the pieces of each state, one message each, and their positions, which are in the control record, so that only the owner of the term
can have stored one. A state is read back whole and checked. A durable cursor releases states that are no longer needed, as for the log.
They are not in the log itself, because a state can be needed for much longer than the log around it. The index of vchannels, which each
checkpoint replaces, is stored in the same way.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import google_crc32c

from wal.errors import CorruptionError
from wal.storage.pulsar.connection import PulsarConnection, failure, position_of_id
from wal.storage.pulsar.control import Control, StoredState
from wal.storage.pulsar.layout import KIND, PIECE
from wal.storage.pulsar.positions import text_of
from wal.storage.pulsar.topic import TopicReader, move_cursor

PIECE_BYTES: Final = 1 << 20


class Checkpoints:
    """The checkpoints of one log in one term."""

    def __init__(self, connection: PulsarConnection, control: Control, *, topic: str, term: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._connection = connection
        self._control = control
        self._topic = topic
        self._term = term
        self._piece_bytes = piece_bytes

    async def save(self, position: int, pieces: Sequence[bytes]) -> None:
        """Stores a state, which replaces an earlier one for this position. Raises ChannelFencedError or StorageError."""
        await self._control.check_owner(self._term)
        saved = await self._connection.run(lambda: self._write(b"".join(pieces)))
        states = {**self._control.record.states, str(position): saved}
        await self._control.change(self._term, states=states)

    async def load(self, position: int) -> bytes:
        """Returns the state stored for this position. Raises CorruptionError when it is missing or damaged."""
        saved = self._control.record.states.get(str(position))
        if saved is None:
            raise CorruptionError(
                f"pchannel {self._control.pchannel!r} has no checkpoint for position {text_of(position)}",
                path=self._topic,
                expected="a checkpoint that was saved",
            )
        return await self._connection.run(lambda: read_state(self._connection, self._topic, saved))

    async def keep(self, position: int | None, index: bytes) -> None:
        """Releases every state except the one for this position (None: every state), and replaces the index of vchannels.

        Raises ChannelFencedError or StorageError.
        """
        before = self._control.record
        states = {at: saved for at, saved in before.states.items() if position is not None and at == str(position)}
        saved = before.index
        if saved is None or (saved.size, saved.crc) != (len(index), google_crc32c.value(index)):
            saved = await self._connection.run(lambda: self._write(index))
        if states == before.states and saved == before.index:
            return
        await self._control.change(self._term, states=states, index=saved)
        # The messages after the kept ones stay too, including those of a state that was saved meanwhile.
        end = min(state.first for state in (*states.values(), saved))
        replaced_states = [*before.states.values(), *(() if before.index is None else (before.index,))]
        last = max((one.last for one in replaced_states if one.last < end), default=None)
        if last is not None:
            await self._connection.run(lambda: move_cursor(self._connection, self._topic, last))

    def _write(self, blob: bytes) -> StoredState:
        save = secrets.token_hex(8)
        positions: list[int] = []
        try:
            producer = self._connection.producer(self._topic, fencing=False)
            try:
                for part, start in enumerate(range(0, max(len(blob), 1), self._piece_bytes)):
                    properties = {KIND: PIECE, "save": save, "part": str(part)}
                    sent = producer.send(blob[start : start + self._piece_bytes], properties=properties)
                    positions.append(position_of_id(sent))
            finally:
                producer.close()
        except Exception as error:
            raise failure(error, f"storing a checkpoint in {self._topic}", self._connection.address) from error
        return StoredState(positions[0], positions[-1], save, len(blob), google_crc32c.value(blob))


def read_state(connection: PulsarConnection, topic: str, saved: StoredState) -> bytes:
    """Returns a state from the topic of checkpoints. Blocks. Raises CorruptionError when it is damaged."""
    reader = TopicReader(connection, topic, saved.first)
    parts: dict[int, bytes] = {}
    try:
        while reader.last is None or reader.last < saved.last:
            message = reader.message()
            properties = message.properties()
            if properties.get("save") == saved.save:
                parts.setdefault(int(properties["part"]), message.data())
    finally:
        reader.close()
    blob = b"".join(parts[part] for part in sorted(parts))
    crc = google_crc32c.value(blob)
    if (len(blob), crc) != (saved.size, saved.crc):
        raise CorruptionError(
            f"the checkpoint at {text_of(saved.first)} of {topic} is damaged: {len(blob)} bytes with CRC32C {crc:#010x}",
            path=topic,
            offset=saved.first,
            expected=f"{saved.size} bytes with {saved.crc:#010x}",
        )
    return blob
