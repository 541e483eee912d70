"""The lease of a node in etcd, as the node judges it by a clock that runs while the process is stopped."""

from __future__ import annotations

import pytest

from tests.storage.kv.test_etcd import new_root
from wal.errors import SessionLostError
from wal.node import session
from wal.node.session import NodeSession


async def test_process_that_slept_has_lost_its_lease(etcd_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first check finds the loss, before the thread that keeps the lease has run; a lost lease stays lost."""
    lease = await NodeSession.open(f"etcd://{etcd_address}/{new_root()}")
    try:
        assert lease.alive
        with monkeypatch.context() as patch:
            patch.setattr(session, "_boot_time", lambda: lease._session.until)
            assert not lease.alive
        assert not lease.alive
        assert isinstance(await lease.lost, SessionLostError)
    finally:
        await lease.close()
