"""The protocol of a log on the network: its messages, calls, errors, and connections. Needs the extra `cluster` (grpcio and protobuf).

It serves both sides, clients and servers, and knows neither. Nothing in it assumes that there is only one server.

Files, from the bottom up:

* api/:         the .proto files and their generated code
* methods:      the services: each method by its path and the types of its messages
* positions:    positions, ids of logs, vchannels and owners as messages, and back
* results:      results of appends as messages, many in one, and back
* codes:        errors as messages and statuses of gRPC, and back
* outcomes:     results and errors of requests on a Produce stream as one message, and back
* columns:      messages to append as columns, and back
* txn_messages: messages that begin, fill and end transactions in the contract's form
* frame_pages:  pages of frames, or of wanted blocks, as messages, and back
* encoded_page: the message of a page, with the bodies of its frames copied once
* selection:    deliver policies and filters as messages, and back
* cursor_state: cursors as messages, and back
* broadcasts:   broadcasts, their results and tasks as messages, and back
* reports:      settings, statistics, retention, producers and tails as messages, and back
* headers:      the metadata of a call: what a stream is created with, and the token
* tokens:       the tokens of a server, their names and rights, and the right that each method needs
* auth:         the server's check of tokens
* answer:       what the end of a call means: its answer, or an error
* stream:       the client's side of a stream
* connection:   calls and streams to one of several addresses, each with a deadline
* serving:      the options and the port of a server
"""

from wal.installation import install_hint

try:
    import google.protobuf  # noqa: F401

    import wal.network  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"a log on the network needs grpcio and protobuf, and {_missing.name} is not installed: {install_hint('cluster')}",
        name=_missing.name,
    ) from _missing
