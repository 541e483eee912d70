"""The guarantees of every KV, as tests. A KV joins by adding one line to FACTORIES in test_conformance.py.

The class needs a fixture `kv`: an open, empty KV that the fixture closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from wal.errors import ClosedError, InvalidArgumentError, KeyNotExistError, TruncatedError
from wal.storage.kv import OPERATIONS_MAX, KVBase, Watch, WatchEvent, WatchKind

PUT, DELETE = WatchKind.PUT, WatchKind.DELETE

BAD_KEYS = ["", "a\0b", "\0", "a\ud800"]
BAD_TYPES = [None, 1, b"key", ["key"]]
AWKWARD = ["a", "a%", "a_", "a/", "a//", "a'b", 'a"b', "ä", "a\U0010ffff", "a\U0010ffff\U0010ffff", "\ud7ff", "\ue000", "a\nb", "A", " "]


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    async with asyncio.timeout(60):
        return [await anext(watch) for _ in range(count)]


async def contents(kv: KVBase) -> dict[str, str]:
    keys, values = await kv.load_with_prefix("")
    return dict(zip(keys, values, strict=True))


class KVConformance:
    # -- one key

    async def test_save_load_remove(self, kv: KVBase) -> None:
        await kv.save("key", "one")
        assert await kv.load("key") == "one"
        await kv.save("key", "two")
        assert await kv.load("key") == "two"
        await kv.remove("key")
        with pytest.raises(KeyNotExistError, match="'key'") as caught:
            await kv.load("key")
        assert caught.value.key == "key"
        await kv.remove("key")

    async def test_values_come_back_as_they_were(self, kv: KVBase) -> None:
        for value in ("", "\0", "a\0b", "ü\U0001f600", " \n", "x" * 1_000_000, "NULL", "1"):
            await kv.save("key", value)
            assert await kv.load("key") == value
            assert await kv.compare_and_swap("key", value, "next")

    async def test_awkward_keys(self, kv: KVBase) -> None:
        for key in AWKWARD:
            await kv.multi_save(dict.fromkeys(AWKWARD, "other"))
            await kv.save(key, "mine")
            assert await kv.load(key) == "mine"
            await kv.remove(key)
            assert sorted(await contents(kv)) == sorted(set(AWKWARD) - {key}), key

    async def test_bad_keys_are_refused_everywhere(self, kv: KVBase) -> None:
        for key in BAD_KEYS:
            for call in (
                kv.load(key), kv.multi_load(["a", key]), kv.save(key, "v"), kv.multi_save({"a": "v", key: "v"}), kv.remove(key),
                kv.multi_remove(["a", key]), kv.multi_save_and_remove({"a": "v"}, [key]), kv.compare_and_swap(key, None, "v"),
                kv.compare_and_swap("a", None, "v", saves={key: "v"}), kv.compare_and_swap("a", None, "v", removals=[key]),
                kv.watch(key),
            ):  # fmt: skip
                with pytest.raises(InvalidArgumentError):
                    await call
        assert await contents(kv) == {}

    async def test_wrong_types_are_type_errors(self, kv: KVBase) -> None:
        wrong: Any
        for wrong in BAD_TYPES:
            for call in (
                kv.load(wrong), kv.multi_load([wrong]), kv.save(wrong, "v"), kv.save("key", wrong), kv.multi_save({"key": wrong}),
                kv.remove(wrong), kv.multi_remove([wrong]), kv.load_with_prefix(wrong), kv.remove_with_prefix(wrong),
                kv.compare_and_swap(wrong, None, "v"), kv.compare_and_swap("key", None, wrong), kv.watch(wrong),
                kv.watch_with_prefix(wrong),
            ):  # fmt: skip
                with pytest.raises(TypeError):
                    await call
        assert await contents(kv) == {}

    async def test_keys_are_a_list_and_values_a_mapping(self, kv: KVBase) -> None:
        no_mapping: Any = ["a"]
        for call in (kv.multi_load("ab"), kv.multi_remove("ab"), kv.multi_save_and_remove({}, "ab"), kv.multi_save(no_mapping)):
            with pytest.raises(TypeError):
                await call

    async def test_values_that_utf8_cannot_carry_change_nothing(self, kv: KVBase) -> None:
        await kv.save("a", "before")
        for value in ("\ud800", "a\udfff"):
            with pytest.raises(InvalidArgumentError, match="'b'"):
                await kv.multi_save({"a": "after", "b": value})
        assert await contents(kv) == {"a": "before"}

    # -- many keys

    async def test_multi_operations(self, kv: KVBase) -> None:
        await kv.multi_save({"b": "2", "a": "1", "c": "3"})
        assert await kv.multi_load(["c", "a", "b"]) == ["3", "1", "2"]
        await kv.multi_save_and_remove({"a": "11", "d": "4"}, ["b", "missing"])
        assert await contents(kv) == {"a": "11", "c": "3", "d": "4"}
        await kv.multi_remove(["a", "d", "missing"])
        assert await contents(kv) == {"c": "3"}

    async def test_empty_multi_operations_do_nothing(self, kv: KVBase) -> None:
        revision = kv.statistics().revision
        await kv.multi_save({})
        await kv.multi_remove([])
        await kv.multi_save_and_remove({}, [])
        assert await kv.multi_load([]) == []
        assert kv.statistics().revision == revision

    async def test_multi_load_lists_all_that_are_missing(self, kv: KVBase) -> None:
        await kv.save("a", "1")
        with pytest.raises(KeyNotExistError, match="'x', 'y'") as caught:
            await kv.multi_load(["x", "a", "y"])
        assert caught.value.key == "x"
        assert "'a'" not in str(caught.value)

    async def test_contradictions_are_refused_and_change_nothing(self, kv: KVBase) -> None:
        await kv.save("a", "before")
        for call in (
            kv.multi_save_and_remove({"a": "1", "b": "2"}, ["a"]),
            kv.multi_remove(["a", "b", "a"]),
            kv.multi_load(["a", "a"]),
            kv.compare_and_swap("a", "before", "1", saves={"a": "2"}),
            kv.compare_and_swap("a", "before", "1", removals=["a"]),
            kv.compare_and_swap("a", "before", "1", saves={"b": "2"}, removals=["b"]),
            kv.compare_and_swap("a", "before", "1", removals=["b", "b"]),
        ):
            with pytest.raises(InvalidArgumentError, match=r"'[ab]'"):
                await call
        assert await contents(kv) == {"a": "before"}

    async def test_operations_max(self, kv: KVBase) -> None:
        assert kv.operations_max in (None, OPERATIONS_MAX)
        kv.operations_max = OPERATIONS_MAX
        most = {f"k{number:03}": "v" for number in range(OPERATIONS_MAX)}
        await kv.multi_save(most)
        assert len(await kv.multi_load(list(most))) == OPERATIONS_MAX
        over = {**most, "one more": "v"}
        for call in (
            kv.multi_save(over),
            kv.multi_load(list(over)),
            kv.multi_remove(list(over)),
            kv.multi_save_and_remove({"x": "v"}, list(most)),
            kv.compare_and_swap("x", None, "v", saves=most),
            kv.change_if(dict.fromkeys([*most, "x"])),
        ):
            with pytest.raises(InvalidArgumentError, match=r"129 .* 128"):
                await call
        assert await contents(kv) == most
        await kv.multi_remove(list(most))
        assert await contents(kv) == {}

    async def test_more_than_128_operations_without_a_bound(self, kv: KVBase) -> None:
        if kv.operations_max is not None:
            return
        many = {f"k{number:04}": str(number) for number in range(2000)}
        await kv.multi_save(many)
        assert await kv.multi_load(list(many)) == list(many.values())
        await kv.multi_remove(list(many))
        assert await contents(kv) == {}

    # -- prefixes

    async def test_prefixes_are_exact_and_ascending(self, kv: KVBase) -> None:
        await kv.multi_save({key: f"value of {key}" for key in random.sample(AWKWARD, len(AWKWARD))})
        for prefix in ["", *AWKWARD, "zzz", "a\U0010ffff"]:
            keys, values = await kv.load_with_prefix(prefix)
            assert keys == sorted(key for key in AWKWARD if key.startswith(prefix))
            assert values == [f"value of {key}" for key in keys]

    async def test_remove_with_prefix_takes_no_neighbour(self, kv: KVBase) -> None:
        keys = [*AWKWARD, "ab", "ab/1", "ab/2", "abc", "b"]
        for prefix in ("a", "a/", "a%", "a\U0010ffff", "ab/", "\ud7ff", ""):
            await kv.multi_save(dict.fromkeys(keys, "v"))
            await kv.remove_with_prefix(prefix)
            assert sorted(await contents(kv)) == sorted(key for key in keys if not key.startswith(prefix)), prefix
            await kv.remove_with_prefix(prefix)

    # -- compare and swap

    async def test_compare_and_swap(self, kv: KVBase) -> None:
        assert not await kv.compare_and_swap("a", "", "1")
        assert await kv.compare_and_swap("a", None, "1")
        assert not await kv.compare_and_swap("a", None, "2")
        assert not await kv.compare_and_swap("a", "0", "2")
        assert await kv.compare_and_swap("a", "1", "2")
        assert await contents(kv) == {"a": "2"}

    async def test_compare_and_swap_takes_the_rest_with_it(self, kv: KVBase) -> None:
        await kv.multi_save({"a": "1", "old": "x"})
        assert not await kv.compare_and_swap("a", "0", "2", saves={"b": "1"}, removals=["old"])
        assert await contents(kv) == {"a": "1", "old": "x"}
        assert await kv.compare_and_swap("a", "1", "2", saves={"b": "1"}, removals=["old", "missing"])
        assert await contents(kv) == {"a": "2", "b": "1"}

    async def test_change_compares_every_key(self, kv: KVBase) -> None:
        long = "x" * 100_000
        before = {"a": "1", "b": "2", "long": long, "old": "x"}
        await kv.multi_save(before)
        for compare, failed in (
            ({"a": "1", "b": "0", "new": None}, "b"),
            ({"a": None, "b": "0"}, "a"),
            ({"a": "1", "old": None}, "old"),
            ({"a": "1", "missing": "1"}, "missing"),
            ({"long": long, "b": "3"}, "b"),
            ({"a": "1", "long": long[1:]}, "long"),
        ):
            assert await kv.change_if(compare, saves={"a": "9"}, removals=["old"]) == failed
            assert await contents(kv) == before
        compare = {"a": "1", "b": "2", "long": long, "new": None}
        assert await kv.change_if(compare, saves={"a": "9", "new": "n"}, removals=["old"]) is None
        assert await contents(kv) == {"a": "9", "b": "2", "long": long, "new": "n"}
        assert await kv.change_if({"a": "9"}) is None
        assert await kv.change_if({"a": "8"}) == "a"
        assert await kv.change_if({}, removals=["new"]) is None
        assert sorted(await contents(kv)) == ["a", "b", "long"]

    async def test_change_compares_under_a_root_path(self, kv: KVBase) -> None:
        rooted = kv.under("below")
        await rooted.save("a", "1")
        assert await rooted.change_if({"a": "2"}, saves={"a": "3"}) == "a"
        assert await rooted.change_if({"a": "1"}, saves={"a": "3"}) is None
        assert await kv.load("below/a") == "3"

    async def test_fifty_writers_have_one_winner_a_round(self, kv: KVBase) -> None:
        async with asyncio.timeout(60):
            for expected, value in [(None, "0"), ("0", "1"), ("1", "2")]:
                won = await asyncio.gather(*(kv.compare_and_swap("a", expected, value, saves={f"{value}/{n}": "won"}) for n in range(50)))
                assert sum(won) == 1
                keys, _ = await kv.load_with_prefix(f"{value}/")
                assert keys == [f"{value}/{won.index(True)}"]

    async def test_concurrent_counters_lose_no_increment(self, kv: KVBase) -> None:
        async def increment() -> None:
            while True:
                before = int(await kv.load("count"))
                if await kv.compare_and_swap("count", str(before), str(before + 1)):
                    return

        await kv.save("count", "0")
        async with asyncio.timeout(60):
            await asyncio.gather(*(increment() for _ in range(20)))
        assert await kv.load("count") == "20"

    async def test_readers_never_see_half_of_a_multi_operation(self, kv: KVBase) -> None:
        keys = [f"k{number}" for number in range(10)]
        await kv.multi_save(dict.fromkeys(keys, "0"))

        async def write(value: int) -> None:
            await kv.multi_save(dict.fromkeys(keys, str(value)))

        async def read() -> None:
            loaded = [await kv.multi_load(keys), (await kv.load_with_prefix("k"))[1]]
            assert [len(set(values)) for values in loaded] == [1, 1]

        await asyncio.gather(*(write(number) if number % 2 else read() for number in range(100)))

    # -- watches

    async def test_watch_is_active_at_once_and_in_order(self, kv: KVBase) -> None:
        async with await kv.watch("key") as watch:
            await kv.save("key", "1")
            await kv.save("key/below", "x")
            await kv.save("ke", "x")
            await kv.remove("missing")
            await kv.remove("key")
            await kv.save("key", "2")
            events = await take(watch, 3)
        assert [(event.kind, event.key, event.value) for event in events] == [
            (PUT, "key", "1"), (DELETE, "key", None), (PUT, "key", "2"),
        ]  # fmt: skip
        first, second, third = (event.revision for event in events)
        assert (second - first, third - second) == (3, 1)  # two saves in between; the removal of a missing key does not count as a change

    async def test_multi_operation_is_one_revision(self, kv: KVBase) -> None:
        await kv.multi_save({"p/gone": "x", "p/1": "x"})
        async with await kv.watch_with_prefix("p/") as watch:
            await kv.multi_save_and_remove({"p/b": "2", "p/a": "1", "q": "x"}, ["p/missing", "p/gone"])
            assert not await kv.compare_and_swap("p/a", "0", "3", saves={"p/x": "x"})
            assert await kv.compare_and_swap("p/a", "1", "3", saves={"p/c": "4"}, removals=["p/1"])
            await kv.remove_with_prefix("p/")
            events = await take(watch, 9)
        start = events[0].revision
        assert [(event.kind, event.key, event.value, event.revision - start) for event in events] == [
            (PUT, "p/b", "2", 0), (PUT, "p/a", "1", 0), (DELETE, "p/gone", None, 0),
            (PUT, "p/a", "3", 1), (PUT, "p/c", "4", 1), (DELETE, "p/1", None, 1),
            (DELETE, "p/a", None, 2), (DELETE, "p/b", None, 2), (DELETE, "p/c", None, 2),
        ]  # fmt: skip

    async def test_watch_follows_concurrent_writers_to_the_end_state(self, kv: KVBase) -> None:
        seen: dict[str, str] = {}
        revisions: list[int] = []
        async with await kv.watch_with_prefix("") as watch:
            await asyncio.gather(
                *(
                    kv.multi_remove([f"k{number % 7}"]) if number % 3 == 0 else kv.save(f"k{number % 7}", str(number))
                    for number in range(300)
                )
            )
            await kv.save("last", "")
            async with asyncio.timeout(60):
                async for event in watch:
                    revisions.append(event.revision)
                    if event.value is None:
                        del seen[event.key]
                    else:
                        seen[event.key] = event.value
                    if event.key == "last":
                        break
        assert seen == await contents(kv)
        assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))

    async def test_two_watches_see_the_same(self, kv: KVBase) -> None:
        one, two, other = await kv.watch("a"), await kv.watch_with_prefix("a"), await kv.watch("b")
        await asyncio.gather(*(kv.save("a", str(number)) for number in range(20)))
        await kv.save("b", "end")
        assert await take(one, 20) == await take(two, 20)
        assert (await take(other, 1))[0].value == "end"
        for watch in (one, two, other):
            await watch.close()

    async def test_cancelling_a_waiting_watch_loses_nothing(self, kv: KVBase) -> None:
        async with await kv.watch("a") as watch:
            for number in range(20):
                waiting = asyncio.ensure_future(anext(watch))
                await asyncio.sleep(0)
                assert not waiting.done()
                save = asyncio.ensure_future(kv.save("a", str(number)))
                if number % 2:
                    await save  # the event is there, and the waiter may be on its way with it
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert (await waiting).value == str(number)
                    continue
                await save
                assert (await take(watch, 1))[0].value == str(number)

    async def test_watch_that_falls_behind_ends_with_an_error(self, kv: KVBase) -> None:
        watch = await kv.watch_with_prefix("", buffer_max=3)
        await kv.multi_save({"a": "1", "b": "2"})
        await kv.multi_save({"c": "3", "d": "4"})
        await kv.save("e", "5")
        assert [event.key for event in await take(watch, 2)] == ["a", "b"]
        for _ in range(2):
            with pytest.raises(TruncatedError, match="watch them again"):
                await take(watch, 1)
        assert isinstance(watch.error, TruncatedError)
        assert kv.statistics().watches == 0
        await watch.close()

    async def test_closed_watch_ends_its_reader(self, kv: KVBase) -> None:
        watch = await kv.watch("a")
        assert kv.statistics().watches == 1
        reader = asyncio.ensure_future(_drain(watch))
        await asyncio.sleep(0)
        await watch.close()
        assert await reader == []
        await watch.close()
        await kv.save("a", "1")
        assert await _drain(watch) == []
        assert kv.statistics().watches == 0

    async def test_watch_bounds_are_checked(self, kv: KVBase) -> None:
        with pytest.raises(InvalidArgumentError, match="buffer_max=0"):
            await kv.watch("a", buffer_max=0)

    # -- root paths

    async def test_root_paths_are_isolated(self, kv: KVBase) -> None:
        a, ab, nested = kv.under("a"), kv.under("ab/"), kv.under("a").under("b")
        assert (a.root_path.endswith("a"), ab.root_path.endswith("ab"), nested.root_path.endswith("a/b")) == (True,) * 3
        async with await a.watch_with_prefix("") as watch, await ab.watch("key") as other:
            for one in (kv, a, ab, nested):
                await one.save("key", one.root_path)
            assert [await one.load("key") for one in (kv, a, ab, nested)] == [one.root_path for one in (kv, a, ab, nested)]
            assert await contents(ab) == {"key": ab.root_path}
            assert list(await contents(a)) == ["b/key", "key"]
            assert list(await contents(kv)) == ["a/b/key", "a/key", "ab/key", "key"]
            assert await a.compare_and_swap("key", a.root_path, "swapped", saves={"x": "1"}, removals=["b/key"])
            await a.remove_with_prefix("")
            assert list(await contents(kv)) == ["ab/key", "key"]
            events = await take(watch, 7)
            assert [event.key for event in events] == ["key", "b/key", "key", "x", "b/key", "key", "x"]
            assert [event.key for event in await take(other, 1)] == ["key"]

    async def test_errors_name_keys_without_the_root_path(self, kv: KVBase) -> None:
        with pytest.raises(KeyNotExistError, match="on key 'key'"):
            await kv.under("root").load("key")

    async def test_bad_root_paths(self, kv: KVBase) -> None:
        for root_path in ("", "/", "//", "a\0"):
            with pytest.raises(InvalidArgumentError):
                kv.under(root_path)

    async def test_closing_a_part_leaves_the_whole_open(self, kv: KVBase) -> None:
        part = kv.under("part")
        watch, of_whole = await part.watch("a"), await kv.watch("part/a")
        await part.close()
        with pytest.raises(ClosedError):
            await part.save("a", "1")
        with pytest.raises(ClosedError):
            await take(watch, 1)
        await kv.save("part/a", "2")
        assert (await take(of_whole, 1))[0].value == "2"
        await of_whole.close()

    # -- the end

    async def test_after_close_everything_is_closed(self, kv: KVBase) -> None:
        watch = await kv.watch("a")
        part = kv.under("part")
        waiting = asyncio.ensure_future(anext(watch))
        await kv.save("b", "1")
        await asyncio.gather(kv.close(), kv.close())
        await kv.close()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await take(watch, 1)
        for one in (kv, part):
            for call in (
                one.load("a"), one.multi_load(["a"]), one.multi_load([]), one.save("a", "1"), one.multi_save({"a": "1"}),
                one.multi_save({}), one.remove("a"), one.multi_remove(["a"]), one.multi_save_and_remove({"a": "1"}, ["b"]),
                one.load_with_prefix("a"), one.remove_with_prefix("a"), one.compare_and_swap("a", None, "1"), one.watch("a"),
                one.watch_with_prefix("a"),
            ):  # fmt: skip
                with pytest.raises(ClosedError):
                    await call

    async def test_calls_before_close_are_carried_out(self, kv: KVBase) -> None:
        saves = [asyncio.ensure_future(kv.save(f"k{number}", "v")) for number in range(100)]
        await asyncio.sleep(0)
        await kv.close()
        assert await asyncio.gather(*saves) == [None] * 100

    async def test_cancelled_caller_leaves_whole_operations(self, kv: KVBase) -> None:
        keys = ["a", "b", "c"]
        await kv.multi_save(dict.fromkeys(keys, "-1"))
        for number in range(100):
            task = asyncio.ensure_future(kv.multi_save(dict.fromkeys(keys, str(number))))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert len(set(await kv.multi_load(keys))) == 1
        await kv.multi_save(dict.fromkeys(keys, "end"))
        assert await kv.multi_load(keys) == ["end"] * 3
        assert kv.statistics().waiting == 0

    async def test_statistics_count(self, kv: KVBase) -> None:
        before = kv.statistics()
        await asyncio.gather(*(kv.save(f"k{number}", "v") for number in range(10)))
        after = kv.statistics()
        assert after.revision - before.revision == 10
        assert after.operations - before.operations == 10
        assert 1 <= after.commits - before.commits <= 10
        assert after.waiting == 0


async def _drain(watch: Watch) -> list[WatchEvent]:
    return [event async for event in watch]
