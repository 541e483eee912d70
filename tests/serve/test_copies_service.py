"""What the coordinator learns of copies that it has a node append."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from broadcaster.message import Content
from tests.probes import local
from tests.storage.journal.faults import FaultyDisk
from wal import BroadcastHeader, MessageType, open_wal
from wal.errors import StorageError, UnavailableError
from wal.read.lease import OWN
from wal.requests.nodes import CopyBroadcast
from wal.rpc.api.nodes_pb2 import ManagerCall
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.serve.copies_service import CopiesService
from wal.serve.hosted import Hosted
from wal.serve.manager import CallCheck
from wal.storage.journal import backend as journal_backend

SERVER_ID = 1


async def test_copy_on_failed_pchannel_is_repeated_in_next_term(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the pchannel has refused its first frame: a StorageError would leave the broadcast stuck, in a part of the log."""

    async def leader() -> int:
        return 0

    disk = FaultyDisk()
    monkeypatch.setattr(journal_backend, "Disk", lambda: disk)
    async with open_wal(str(data_dir)) as log:
        await log.create_vchannel("orders")
        engine = local(log)
        view = cast(Any, engine.coordinator.vchannels)
        service = CopiesService(engine.node, view, Hosted(engine.node.pchannels), CallCheck(SERVER_ID, OWN, leader))
        pchannel, call = PChannelInfo(name="p0"), ManagerCall(server_id=SERVER_ID)

        async def outcomes(name: str) -> list[object]:
            header = BroadcastHeader(await log.allocate_time_tick(), (name,), ())
            request = CopyBroadcast((name,), header.to_bytes(), Content(b"copy", int(MessageType.INSERT)))
            return list(await service.submit(request, pchannel, call))

        (appended,) = await outcomes("orders")
        assert not isinstance(appended, Exception)
        disk.fail_sync = True
        for _ in range(2):
            with pytest.raises(UnavailableError, match="pchannel 'p0' has failed on this node"):
                await outcomes("orders")
        with pytest.raises(StorageError):
            await log.append("orders", b"plain")
