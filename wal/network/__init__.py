"""What every client over gRPC needs: methods, TLS files, and the choice among several addresses. Imported only where gRPC is installed.

Files:

* method     a method: its path, and the types of its messages
* forks      the import of gRPC itself, without its handlers of forks
* tls        the files of a TLS connection, for a client and for a server, whose certificate can be renewed
* endpoints  a channel to each of several addresses, and the choice of one for calls
* tls_faults what the reasons for a connection that failed say about TLS: pure
* reach      waits for a connection, and says early why there will be none
"""

import wal.network.forks  # noqa: F401

# isort: split

from wal.network.endpoints import PING_S, Endpoints, ping_options
from wal.network.method import Method
from wal.network.tls import Reach, ServerCertificate, TlsFiles

__all__ = ["PING_S", "Endpoints", "Method", "Reach", "ServerCertificate", "TlsFiles", "ping_options"]
