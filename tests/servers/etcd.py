"""EtcdServer: a real etcd of one member, and the source of its program.

Owns the server's directory and ports. `find_etcd` looks on PATH, then builds VERSION with Go into the cache (about 45 s, once);
`find_old_etcd` extracts Debian's 3.4 from its package, without installing the package. Listens on 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tests.servers.cache import MissingServerError, installed, say
from tests.servers.golang import GoProgram, run
from tests.servers.process import ServerProcess, free_ports

VERSION: Final = "3.6.6"
ADDRESS_VARIABLE: Final = "WAL_TEST_ETCD"
"""`host:port` of an etcd that already runs; tests that kill their server still start their own."""
_PROGRAM: Final = GoProgram("etcd", "go.etcd.io/etcd/server/v3", VERSION, ADDRESS_VARIABLE)
find_etcd = _PROGRAM.find
install = _PROGRAM.install


class EtcdServer(ServerProcess):
    """One member on free ports. `address` is `host:port`; `options` are further arguments of etcd.

    `tls`: certificate, key and the authority that clients must be signed by; then the client port speaks TLS only, and readiness is
    asked on a port of its own for metrics. `peers`: the peer ports of a cluster, of which this is the `member`th.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        folder: Path | None = None,
        data_dir: Path | None = None,
        options: Sequence[str] = (),
        tls: tuple[Path, Path, Path] | None = None,
        member: int = 0,
        peers: Sequence[int] = (),
    ) -> None:
        self.folder = self._own(folder, "etcd")
        self.data_dir = data_dir or self.folder / "data"
        """The server's data directory; a copy of it, taken while the server is down, is a backup."""
        client, peer, metrics = free_ports(3)
        peers = peers or (peer,)
        peer = peers[member]
        members = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
        self.port = client
        self.address = f"127.0.0.1:{client}"
        scheme = "http" if tls is None else "https"
        health = f"http://127.0.0.1:{metrics}"
        command = [
            str(binary or find_etcd()), "--name", f"m{member}", "--data-dir", str(self.data_dir),
            "--listen-client-urls", f"{scheme}://{self.address}", "--advertise-client-urls", f"{scheme}://{self.address}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", members, "--listen-metrics-urls", health, *options,
        ]  # fmt: skip
        if tls is not None:
            certificate, key, authority = map(str, tls)
            command += ["--cert-file", certificate, "--key-file", key, "--trusted-ca-file", authority, "--client-cert-auth"]
        super().__init__("etcd", command, log=self.folder / "etcd.log", is_ready=lambda: _healthy(health), ready_timeout_s=60.0)


@contextlib.contextmanager
def cluster(binary: Path, count: int) -> Iterator[list[EtcdServer]]:
    """Yields members of one cluster, all started."""
    peers = free_ports(count)
    members = [EtcdServer(binary, member=number, peers=peers) for number in range(count)]
    try:
        with ThreadPoolExecutor(count) as starters:  # none is ready before most of them run
            list(starters.map(EtcdServer.start, members))
        yield members
    finally:
        for member in members:
            member.close()


def started() -> AbstractContextManager[Mapping[str, str]]:
    """Runs a server during a block; see `GoProgram.started`."""
    return _PROGRAM.started(EtcdServer)


def find_old_etcd() -> Path:
    """Returns etcd 3.4 as Debian and Ubuntu package it. MissingServerError if apt-get has no such package."""
    return installed("etcd-3.4-debian", _extract) / "usr" / "bin" / "etcd"


def _extract(folder: Path) -> None:
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        raise MissingServerError("etcd 3.4 comes out of Debian's package etcd-server, and apt-get is missing here")
    say("taking etcd 3.4 out of Debian's package etcd-server")
    with tempfile.TemporaryDirectory(prefix="wal-etcd-deb-") as work:
        try:
            run([apt, "download", "etcd-server"], Path(work))
        except MissingServerError:
            if os.geteuid() != 0:
                raise
            run([apt, "update"], Path(work))  # a fresh container has no lists of packages
            run([apt, "download", "etcd-server"], Path(work))
        (package,) = Path(work).glob("etcd-server_*.deb")
        if not package.name.startswith("etcd-server_3.4."):
            raise MissingServerError(f"this system's etcd-server is {package.name}, which is not 3.4")
        run([dpkg, "-x", str(package), str(folder)], Path(work))


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return b'"true"' in answer.read()
    except (OSError, urllib.error.URLError):
        return False
