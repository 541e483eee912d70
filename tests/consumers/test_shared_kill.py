"""Members of a shared cursor that are killed, stopped past their lease, and lose their server: each message is finished once.

The default run has 8 rounds over three member processes of a served log (those of a cluster: `tests/operate/cluster/test_member_kills.py`);
a soak has 300.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.consumers.workers import MEMBERS, ROUND, Workers, append_round
from tests.processes import Line, Other
from tests.serve.servers import serving
from tests.servers.process import free_ports
from wal import open_wal
from wal.serve.access import Access

ROUNDS = 12 if SOAK else 8
GRACE_S = 0.1


async def serve(line: Line, directory: Path, address: str) -> None:
    """Serves the log at this address until it is killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.node.shared_members.GRACE_S", GRACE_S)
        async with serving(directory, access=Access(listen=address), pchannels=1):
            line.tell("ready")
            await line.hear()


@pytest.mark.parametrize("run", range(25 if SOAK else 1))
async def test_members_finish_each_message_once_over_kills(data_dir: Path, run: int) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    location = f"wal://{address}"
    server = Other(serve, data_dir, address)
    assert await server.hear() == "ready"
    workers = Workers(location)
    workers.start()
    async with open_wal(location) as log:
        for number in range(ROUNDS):
            await workers.progress(log, await append_round(log, number))
            victim = random.randrange(MEMBERS)
            fault = random.choice(("member", "member", "stopped", "server", "both"))
            if fault in ("server", "both"):
                await server.kill_and_hear()
            if fault in ("member", "both"):
                await workers.replace(victim)
            if fault == "stopped":
                await workers.stop(victim)
            if fault in ("server", "both"):
                server = Other(serve, data_dir, address)
                assert await server.hear() == "ready"
        await workers.progress(log, ROUNDS * ROUND)
        await workers.end()
        await workers.check(log, ROUNDS * ROUND)
    await server.kill_and_hear()
