"""Random calls for channels and vchannels against a model of a few lines, over random reopenings."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.locations import SOAK
from tests.probes import payloads
from wal import ChannelDescription, Message, OwnerDescription, WALAccesser, open_wal
from wal.errors import ChannelNotExistError, InvalidArgumentError


@pytest.mark.parametrize("backend", ["memory", "journal"])
def test_channels_answer_as_their_model(backend: str) -> None:
    vchannels_max = 12
    OWNERS = [OwnerDescription("ingest"), OwnerDescription("billing", "10.0.0.8", "\0 \U0001f600")]
    SOME = st.sets(st.integers(0, vchannels_max + 4), max_size=4)
    calls = st.one_of(
        st.tuples(st.just("create"), st.sampled_from(OWNERS), st.integers(1, 6)),
        st.tuples(st.just("destroy"), SOME),
        st.tuples(st.just("drop"), st.integers(0, vchannels_max)),
        st.tuples(st.just("append"), st.integers(0, vchannels_max + 4)),
        st.tuples(st.just("describe"), SOME),
        st.tuples(st.just("reopen")),
    )
    STEPS = st.lists(calls, max_size=25)

    class Model:
        """The vchannels in the order of their creation, each with its owner (None: no channel) and messages; and all names there ever
        were."""

        def __init__(self) -> None:
            self.owners: dict[str, OwnerDescription | None] = {}
            self.messages: dict[str, list[bytes]] = {}
            self.ever: list[str] = ["mine", "yours"]

        def add(self, name: str, owner: OwnerDescription | None) -> None:
            self.owners[name], self.messages[name] = owner, []

        def remove(self, name: str) -> None:
            del self.owners[name], self.messages[name]

        def described(self, names: list[str]) -> list[ChannelDescription] | None:
            """Returns the expected descriptions, or None if one of the names is not that of a channel."""
            owners = [self.owners.get(name) for name in names]
            found = [ChannelDescription(name, owner) for name, owner in zip(names, owners, strict=True) if owner]
            return found if len(found) == len(names) else None

    async def step(log: WALAccesser, model: Model, call: str, *arguments: Any) -> None:
        match call, *arguments:
            case "create", owner, count:
                if len(model.owners) + count > vchannels_max:
                    with pytest.raises(InvalidArgumentError, match="vchannels_max"):
                        await log.create_channels(owner, count)
                    return
                names = await log.create_channels(owner, count)
                assert len(names) == count
                assert not set(names) & set(model.ever), "a name is given once"
                model.ever += names
                for name in names:
                    model.add(name, owner)
            case (("destroy" | "describe"), some):
                names = [name for at, name in enumerate(model.ever) if at in some]
                expected = model.described(names)
                call_it: Any = log.destroy_channels if call == "destroy" else log.describe_channels
                if expected is None:
                    with pytest.raises(ChannelNotExistError):
                        await call_it(names)
                elif call == "describe":
                    assert await call_it(names) == expected
                else:
                    await call_it(names)
                    for name in names:
                        model.remove(name)
            case "drop", at:
                if at < len(model.owners):
                    name = list(model.owners)[at]
                    await log.drop_vchannel(name)
                    model.remove(name)
            case "append", at:
                name = model.ever[at % len(model.ever)]
                if name in model.owners or len(model.owners) < vchannels_max:
                    await log.raw_append(Message(name, name.encode()))
                    if name not in model.owners:
                        model.add(name, None)
                    model.messages[name].append(name.encode())
        assert {info.name: info.owner for info in await log.vchannels()} == model.owners
        assert await log.describe_channels() == model.described([name for name, owner in model.owners.items() if owner])

    @settings(max_examples=1000 if SOAK else 40 if backend == "memory" else 6)
    @given(STEPS)
    def run(steps: list[tuple[Any, ...]]) -> None:
        async def main(location: str) -> None:
            model = Model()
            log = await open_wal(location, vchannels_max=vchannels_max, pchannels=2)
            for call, *arguments in steps:
                if call != "reopen":
                    await step(log, model, call, *arguments)
                elif backend == "journal":
                    await log.close()
                    log = await open_wal(location, vchannels_max=vchannels_max)
            for name, messages in model.messages.items():
                assert await payloads(log, name) == messages
            await log.close()

        if backend == "memory":
            asyncio.run(main("memory:"))
        else:
            with tempfile.TemporaryDirectory() as data:
                asyncio.run(main(f"journal:{data}/log"))

    run()
