"""gRPC's poller, which all loops of a process share: it blocks none of them, and logs no error when several use it."""

from __future__ import annotations

import pytest

from tests.processes import run_python


def test_poller_disturbs_no_loop(etcd_address: str, subtests: pytest.Subtests) -> None:
    closed_on_a_loop = """
        import asyncio, gc, sys, threading
        from wal.storage.kv.etcd import EtcdKV

        joined = []
        join = threading.Thread.join
        threading.Thread.join = lambda thread, timeout=None: (joined.append(thread.name), join(thread, timeout))[1]

        async def main():
            async with await EtcdKV.open([sys.argv[1]], root_path=sys.argv[2]) as kv:
                await kv.save("a", "b")
            del kv
            gc.collect()
            assert not joined, joined

        for _ in range(3):
            asyncio.run(main())
    """
    in_three_threads = """
        import asyncio, sys, threading
        from wal.storage.kv.etcd import EtcdKV

        async def work(name):
            async with await EtcdKV.open([sys.argv[1]], root_path=sys.argv[2]) as kv:
                for number in range(60):
                    await asyncio.gather(*(kv.save(f"{name}/{one}", str(number)) for one in range(4)))
                assert set((await kv.load_with_prefix(f"{name}/"))[1]) == {"59"}
            print("done")

        threads = [threading.Thread(target=lambda name=name: asyncio.run(work(name))) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """

    cases: dict[str, tuple[str, str]] = {"closed": (closed_on_a_loop, ""), "threads": (in_three_threads, "done\n" * 3)}
    for case, (script, said) in cases.items():
        with subtests.test(case):
            ended = run_python("-c", script, etcd_address, "wal-test-poller")
            assert (ended.out, ended.err) == (said, "")
