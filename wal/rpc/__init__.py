"""The protocol of a log on the network: its messages, calls, errors, and connections. Needs the extra `cluster` (grpcio and protobuf).

`api/` has the .proto files, and `methods.py` each method with the types of its messages. `converter.py` turns requests and answers into
these messages and back, and a file for each subject does so for what streams carry and for errors (`codes.py`). `connection.py` is the
client's side: calls and streams to one of several addresses, each with a deadline. `serving.py`, `conversation.py`, `draining.py` and
`auth.py` are the server's side. The room imports neither clients nor servers.
"""

from wal.runtime.installation import Needed

with Needed("a log on the network needs", "cluster"):
    import google.protobuf  # noqa: F401

    import wal.network  # noqa: F401
