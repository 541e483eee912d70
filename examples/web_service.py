"""A web service that embeds the log: orders are appended in transactions, and clients tail them by long poll.

    python -m examples.web_service [location]              (default: data/web_service/; serves on 127.0.0.1:8000)

    curl -X POST localhost:8000/orders -d '{"customer": "ada", "items": ["apples", "pears"]}'
    curl 'localhost:8000/events?wait_s=10'                  then again with ?after=<position from the answer>

The log opens and closes with the application. One process serves it: with several workers, give each a log of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wal import Message, ReadPosition, Settings, WALAccesser, open_wal
from wal.errors import InvalidArgumentError, TruncatedError, WALError

WAIT_S_MAX = 30.0
EVENTS_MAX = 100


def make_app(location: str, settings: Settings | None = None) -> Starlette:
    """Returns the application. Its log is open from its start to its stop."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_wal(location, settings=settings) as log:
            app.state.log = log
            yield

    routes = [Route("/orders", create_order, methods=["POST"]), Route("/events", events)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={WALError: failed})


async def create_order(request: Request) -> Response:
    """Stores an order and its items in one transaction: once a client gets 201, all of it survives any crash."""
    log: WALAccesser = request.app.state.log
    try:
        order = await request.json()
        customer, items = str(order["customer"]), [str(item) for item in order["items"]]
    except (ValueError, TypeError, KeyError) as error:
        return JSONResponse({"error": f"not an order: {error!r}"}, status_code=400)
    async with log.txn("orders") as txn:
        await txn.append(Message("orders", b"created", properties={"customer": customer}))
        for item in items:
            await txn.append(Message("orders", item.encode(), properties={"customer": customer}))
    return JSONResponse({"id": str(txn.result.message_id), "time_tick": str(txn.result.time_tick)}, status_code=201)


async def events(request: Request) -> Response:
    """Long poll: answers with the events after `after` as soon as there are any, or with an empty list after `wait_s` seconds."""
    log: WALAccesser = request.app.state.log
    after, wait = request.query_params.get("after"), request.query_params.get("wait_s", "0")
    position = ReadPosition.parse(after) if after else None
    try:
        wait_s = min(max(float(wait), 0.0), WAIT_S_MAX)
    except ValueError:
        return JSONResponse({"error": f"wait_s={wait!r} is not a number of seconds"}, status_code=400)
    answer: list[dict[str, object]] = []
    async with log.read("orders", resume=position, follow=wait_s > 0) as scanner:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s or None):
                async for page in scanner.batches(size_max=EVENTS_MAX):
                    answer = [
                        {
                            "id": str(message.message_id),
                            "time": message.append_time.isoformat(),
                            "bodies": [body.payload.decode() for body in message.bodies()],
                        }
                        for message in page
                    ]
                    break
        return JSONResponse({"events": answer, "position": str(scanner.position or "")})


async def failed(request: Request, error: Exception) -> Response:
    """Maps errors of the log to HTTP statuses: the caller's mistake, a truncated position, or a retry."""
    status = 400 if isinstance(error, InvalidArgumentError) else 410 if isinstance(error, TruncatedError) else 503
    return JSONResponse({"error": str(error)}, status_code=status)


def main(location: str = "data/web_service/") -> None:
    import uvicorn

    uvicorn.run(make_app(location), host="127.0.0.1", port=8000)


if __name__ == "__main__":
    main(*sys.argv[1:])
