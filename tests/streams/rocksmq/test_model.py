"""A RocksMQ on a real database against lists: calls in any order, with reopenings in between."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.errors import ChannelExistError, ChannelNotExistError
from wal.streams.rocksmq import RocksMQ

CHANNELS = ("a", "a/b", "a1")
GROUPS = ("g", "h")
channel_names, group_names = st.sampled_from(CHANNELS), st.sampled_from(GROUPS)


def test_channels_match_a_model() -> None:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.directory = Path(tempfile.mkdtemp())
            self.runner = asyncio.Runner()
            self.mq = self.run(RocksMQ.open(self.directory / "mq"))
            self.channels: dict[str, list[tuple[int, bytes]]] = {}
            self.read: dict[tuple[str, str], int] = {}
            self.acked: dict[tuple[str, str], int] = {}
            self.number = 0
            self.last_id = 0

        def run(self, call: Coroutine[Any, Any, Any]) -> Any:
            return self.runner.run(call)

        def refused(self, call: Coroutine[Any, Any, Any], kind: type[Exception]) -> None:
            try:
                self.run(call)
            except kind:
                return
            raise AssertionError(f"{kind.__name__} was expected")

        @rule(name=channel_names)
        def create(self, name: str) -> None:
            if name in self.channels:
                self.refused(self.mq.create_channel(name), ChannelExistError)
            else:
                self.run(self.mq.create_channel(name))
                self.channels[name] = []

        @rule(name=channel_names)
        def destroy(self, name: str) -> None:
            if name in self.channels:
                self.run(self.mq.destroy_channel(name))
                del self.channels[name]
                for group in GROUPS:
                    self.read.pop((group, name), None)
                    self.acked.pop((group, name), None)
            else:
                self.refused(self.mq.destroy_channel(name), ChannelNotExistError)

        @rule(name=channel_names, group=group_names, latest=st.booleans())
        def create_group(self, name: str, group: str, latest: bool) -> None:
            call = self.mq.create_consumer_group(group, name, latest=latest)
            if name not in self.channels:
                self.refused(call, ChannelNotExistError)
            elif (group, name) in self.read:
                self.refused(call, ChannelExistError)
            else:
                self.run(call)
                self.read[group, name] = self.acked[group, name] = len(self.channels[name]) if latest else 0

        @precondition(lambda self: self.read)
        @rule(data=st.data())
        def destroy_group(self, data: st.DataObject) -> None:
            group, name = data.draw(st.sampled_from(sorted(self.read)))
            self.run(self.mq.destroy_consumer_group(group, name))
            del self.read[group, name], self.acked[group, name]

        @rule(name=channel_names, counts=st.lists(st.integers(1, 5), min_size=1, max_size=4))
        def produce(self, name: str, counts: list[int]) -> None:
            """Makes several calls at once, which share a turn."""
            batches = []
            for count in counts:
                batches.append([b"%d" % (self.number + index) for index in range(count)])
                self.number += count

            async def all_of_them() -> list[Any]:
                return await asyncio.gather(*(self.mq.produce(name, batch) for batch in batches), return_exceptions=True)

            for batch, ids in zip(batches, self.run(all_of_them()), strict=True):
                if name not in self.channels:
                    assert isinstance(ids, ChannelNotExistError)
                    continue
                assert len(ids) == len(batch)
                assert ids.start > self.last_id
                self.last_id = ids[-1]
                self.channels[name] += zip(ids, batch, strict=True)

        @precondition(lambda self: self.read)
        @rule(data=st.data(), n=st.integers(1, 7), auto_ack=st.booleans())
        def consume(self, data: st.DataObject, n: int, auto_ack: bool) -> None:
            group, name = key = data.draw(st.sampled_from(sorted(self.read)))
            messages = self.run(self.mq.consume(group, name, n, auto_ack=auto_ack))
            at = self.read[key]
            assert [(message.message_id, message.payload) for message in messages] == self.channels[name][at : at + n]
            self.read[key] = at + len(messages)
            if auto_ack and messages:
                self.acked[key] = self.read[key]

        @precondition(lambda self: any(self.read.values()))
        @rule(data=st.data())
        def ack(self, data: st.DataObject) -> None:
            group, name = key = data.draw(st.sampled_from(sorted(key for key, at in self.read.items() if at)))
            at = data.draw(st.integers(1, self.read[key]))
            self.run(self.mq.ack(group, name, self.channels[name][at - 1][0]))
            self.acked[key] = max(self.acked[key], at)

        @precondition(lambda self: any(self.channels[name] for _, name in self.read))
        @rule(data=st.data(), inclusive=st.booleans())
        def seek(self, data: st.DataObject, inclusive: bool) -> None:
            group, name = key = data.draw(st.sampled_from(sorted(key for key in self.read if self.channels[key[1]])))
            at = data.draw(st.integers(0, len(self.channels[name]) - 1))
            self.run(self.mq.seek(group, name, self.channels[name][at][0], inclusive=inclusive))
            self.read[key] = self.acked[key] = at if inclusive else at + 1

        @rule()
        def open_again(self) -> None:
            self.run(self.mq.close())
            self.mq = self.run(RocksMQ.open(self.directory / "mq"))
            self.read = dict(self.acked)

        @invariant()
        def ranges(self) -> None:
            found = {info.name: info for info in self.mq.channels()}
            assert sorted(found) == sorted(self.channels)
            for name, messages in self.channels.items():
                info = found[name]
                assert {group.name for group in info.groups} == {group for group, channel in self.read if channel == name}
                if messages:
                    assert (info.begin_id, info.end_id) == (messages[0][0], messages[-1][0] + 1)
                else:
                    assert info.begin_id == info.end_id

        def teardown(self) -> None:
            self.run(self.mq.close())
            self.runner.close()
            shutil.rmtree(self.directory)

    run_state_machine_as_test(Machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None))
