"""A bare grpc.aio server that sends back each message of a bidirectional stream: `python -m benchmarks.grpc_echo`, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

ECHO_PATH: Final = "/benchmarks.Echo/Echo"


async def _echo(_requests: object, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def serve() -> None:
    """Prints its address, and serves until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    _, service, method = ECHO_PATH.split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await stopped.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(serve())
