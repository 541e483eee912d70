"""What gRPC itself writes: nothing on the standard error of a program, unless it asked for that."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import threading

import pytest


@pytest.mark.parametrize(("verbosity", "shown"), [(None, False), ("ERROR", True)])
def test_refused_connection_is_quiet(verbosity: str | None, shown: bool) -> None:
    """A server that refuses a connection by GOAWAY, as one above its bounds does."""
    program = """
        import sys
        import wal.network
        import grpc
        with grpc.insecure_channel(sys.argv[1]) as channel:
            try:
                channel.unary_unary("/any")(b"", timeout=10)
            except grpc.RpcError as error:
                print(error.code().name)
    """

    settings_frame = bytes(3) + b"\x04" + bytes(5)
    settings_ack = bytes(3) + b"\x04\x01" + bytes(4)
    text = b"too_many_pings"
    goaway_frame = bytes((0, 0, 8 + len(text), 7)) + bytes(9) + (11).to_bytes(4, "big") + text

    def refuse() -> None:
        first, _ = listening.accept()
        with first, contextlib.suppress(OSError):  # the test has ended
            first.sendall(settings_frame)
            received = b""
            while settings_ack not in received:  # a client that gets GOAWAY before its connection is ready may not try again, but wait
                data = first.recv(1 << 16)
                assert data, "the client has left"
                received += data
            first.sendall(goaway_frame)
            first.shutdown(socket.SHUT_WR)
            while True:  # without an answer, the client's next attempt would last until its deadline, here or at the port's next owner
                listening.accept()[0].close()

    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    environment |= {} if verbosity is None else {"GRPC_VERBOSITY": verbosity}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        refusing = threading.Thread(target=refuse, daemon=True)
        refusing.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        command = [sys.executable, "-c", textwrap.dedent(program), address]
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        listening.shutdown(socket.SHUT_RDWR)
        refusing.join(10)
    assert child.stdout == "UNAVAILABLE\n"
    assert ("GOAWAY" in child.stderr) is shown
    assert shown or child.stderr == ""
