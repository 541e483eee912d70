"""Random keyed appends and transactions against a model of a few lines, over random reopenings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.probes import payloads
from wal import AppendResult, Message, ProducerKey, WALAccesser, open_wal
from wal.errors import InvalidRequestSeqError


@pytest.mark.parametrize("number", range(6))
async def test_keys_answer_as_their_model(tmp_path: Path, number: int, soak: int) -> None:
    names = ["a", "b", "c"]
    results_kept = 16
    window = 40
    Scope = frozenset[str]

    class Model:
        """The expected answers of the log: one pchannel, the newest `window` plain keys, and producers that are never forgotten."""

        def __init__(self) -> None:
            self.window: dict[tuple[Scope, str], int] = {}
            self.producers: dict[tuple[Scope, str], dict[int, int]] = {}
            self.written: dict[str, list[bytes]] = {name: [] for name in names}
            self.writes = 0
            self.settle()

        def settle(self) -> None:
            """Settles all appends in flight, and drops the oldest keys from the window."""
            for key in list(self.window)[:-window]:
                del self.window[key]
            self.in_flight: dict[tuple[Scope, str | ProducerKey], int] = {}

        def judge(self, scope: Scope, key: str | ProducerKey, body: bytes) -> tuple[bool, int | None] | None:
            """Returns whether the append is a duplicate, and which write's result it gets (None: no longer kept).

            None: a later sequence of its producer is in flight, so it is not decided yet.
            """
            if (scope, key) in self.in_flight:
                return True, self.in_flight[scope, key]
            if isinstance(key, ProducerKey):
                sequences = self.producers.setdefault((scope, key.producer), {})
                known = [sequence for sequence in sequences if (scope, ProducerKey(key.producer, sequence)) not in self.in_flight]
                if known and key.sequence <= max(known):
                    return True, sequences[key.sequence] if key.sequence in sorted(known)[-results_kept:] else None
                if sequences and key.sequence < max(sequences):
                    return None
                sequences[key.sequence] = self.writes
            else:
                if (scope, key) in self.window:
                    return True, self.window[scope, key]
                self.window[scope, key] = self.writes
            self.in_flight[scope, key] = self.writes
            for name in scope:
                self.written[name].append(body)
            self.writes += 1
            return False, self.writes - 1

    def any_key(dice: random.Random) -> str | ProducerKey:
        if dice.random() < 0.5:
            return f"k{dice.randrange(60)}"
        return ProducerKey(f"p{dice.randrange(3)}", max(0, int(dice.gauss(40, 25))))

    def any_scope(dice: random.Random) -> Scope:
        return frozenset(dice.sample(names, dice.choice([1, 1, 1, 2, 3])))

    async def write(log: WALAccesser, scope: Scope, key: str | ProducerKey, body: bytes) -> AppendResult[Any, Any]:
        async with log.txn(vchannels=sorted(scope), idempotency_key=key) as txn:
            for name in scope:
                await txn.append(Message(name, body))
        assert txn.result is not None
        return txn.result

    async def step(log: WALAccesser, dice: random.Random, model: Model, results: dict[int, AppendResult[Any, Any]]) -> None:
        """Checks that a transaction, or many plain appends in flight together, get the answers of the model."""
        asked: list[tuple[Scope, str | ProducerKey, bytes]] = []
        if dice.random() < 0.3:
            asked.append((any_scope(dice), any_key(dice), b"%x" % dice.getrandbits(64)))
            answers: Sequence[Any] = [await write(log, *asked[0])]
        else:
            for _ in range(dice.randrange(1, 30)):
                asked.append((frozenset([dice.choice(names)]), any_key(dice), b"%x" % dice.getrandbits(64)))
            calls = [log.append_nowait(Message(min(scope), body), idempotency_key=key) for scope, key, body in asked]
            answers = await asyncio.gather(*calls, return_exceptions=True)
        for (scope, key, body), answer in zip(asked, answers, strict=True):
            expected = model.judge(scope, key, body)
            if expected is None:
                assert isinstance(answer, InvalidRequestSeqError), answer
                continue
            duplicate, number = expected
            assert isinstance(answer, AppendResult), answer
            assert answer.duplicate == duplicate, (scope, key)
            if number is None:
                assert (answer.message_id, answer.time_tick, answer.last_confirmed) == (None, None, None)
            elif not duplicate:
                results[number] = answer
            else:
                assert (answer.message_id, answer.time_tick) == (results[number].message_id, results[number].time_tick)
        model.settle()

    for seed in range(number * 1000, number * 1000 + soak):
        dice = random.Random(seed)
        model, results = Model(), dict[int, AppendResult]()
        data = str(tmp_path / f"{seed}")
        for _ in range(5):
            async with open_wal(data, idempotency_window_count=window, segment_bytes=1 << 20) as log:
                for _ in range(dice.randrange(1, 25)):
                    try:
                        await step(log, dice, model, results)
                    except AssertionError as error:
                        raise AssertionError(f"seed {seed}: {error}") from error
                for name in names:
                    assert await payloads(log, name) == model.written[name], f"seed {seed}"
