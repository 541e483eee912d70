"""The common part of every client over gRPC: methods, TLS files, and the choice among several addresses. Imported only where gRPC is
installed.

gRPC is imported once, without its fork handlers. `Endpoints` has a channel to each of several addresses, and chooses one for calls. `Reach`
waits for a connection and reports early if none is possible.
"""

import wal.network.forks  # noqa: F401

# isort: split

from wal.network.endpoints import PING_S, Endpoints, Method, ping_options, served_by
from wal.network.reach import Reach
from wal.network.tls import ServerCertificate, TlsFiles

__all__ = ["PING_S", "Endpoints", "Method", "Reach", "ServerCertificate", "TlsFiles", "ping_options", "served_by"]
