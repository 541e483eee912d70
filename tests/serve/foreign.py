"""A foreign client: built from the text of Milvus' protocol alone, and talking plain gRPC."""

from __future__ import annotations

import base64
import functools
from typing import Any, Self

import grpc
import grpc.aio

from tests.rpc.contract import PACKAGE, Contract
from wal.rpc.api import error_pb2

DETAILS = "grpc-status-details-bin"


def creating_header(created: Any) -> tuple[str, str]:
    """Returns the metadata that creates a stream of Milvus' protocol."""
    name = {"CreateProducerRequest": "create-producer", "CreateConsumerRequest": "create-consumer"}
    return name[created.DESCRIPTOR.name], base64.b64encode(created.SerializeToString()).decode()


class Foreign:
    """The client. `kind("X")` is the class of Milvus' message X."""

    def __init__(self, address: str, contract: Contract) -> None:
        self.contract = contract
        self.kind = contract.kind
        keep_poller()
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def open(self, service: str, method: str, created: Any = None, *, metadata: Any = ()) -> Any:
        """Opens a stream of Milvus' protocol; `created` is the message that creates it, sent in the metadata."""
        found = self.contract.file.services_by_name[service].methods_by_name[method]
        if created is not None:
            metadata = (*metadata, creating_header(created))
        return self._channel.stream_stream(
            f"/{PACKAGE}.{service}/{method}",
            request_serializer=self.kind(found.input_type.name).SerializeToString,
            response_deserializer=self.kind(found.output_type.name).FromString,
        )(metadata=metadata)

    async def ask(self, service: str, method: str) -> Any:
        """Returns the answer to a call of Milvus' protocol whose request is empty."""
        found = self.contract.file.services_by_name[service].methods_by_name[method]
        return await self._channel.unary_unary(
            f"/{PACKAGE}.{service}/{method}",
            request_serializer=self.kind(found.input_type.name).SerializeToString,
            response_deserializer=self.kind(found.output_type.name).FromString,
        )(self.kind(found.input_type.name)())

    def discover(self) -> Any:
        return self.open("StreamingCoordAssignmentService", "AssignmentDiscover")

    def produce(self, info: Any) -> Any:
        return self.open("StreamingNodeHandlerService", "Produce", self.kind("CreateProducerRequest")(pchannel=info))

    def consume(self, info: Any, **request: Any) -> Any:
        created = self.kind("CreateConsumerRequest")(pchannel=info, **request)
        return self.open("StreamingNodeHandlerService", "Consume", created)

    async def assigned(self) -> Any:
        """Returns the first pchannel that AssignmentDiscover shows."""
        call = self.discover()
        (assignment,) = (await call.read()).full_assignment.assignments
        call.cancel()
        return assignment.channels[0]

    def message(self, vchannel: str, payload: bytes, **properties: str) -> Any:
        """Returns an INSERT."""
        return self.kind("Message")(payload=payload, properties={"_v": "2", "_t": "2", "_vc": vchannel, **properties})

    def request(self, number: int, message: Any) -> Any:
        produce = self.kind("ProduceMessageRequest")(request_id=number, message=message)
        return self.kind("ProduceRequest")(produce=produce)

    async def error_of(self, call: Any) -> tuple[grpc.StatusCode, Any]:
        """Reads a stream to its end, which is an error; returns the status and the StreamingError in its details."""
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        code = await call.code()
        details = dict(await call.trailing_metadata())[DETAILS]
        return code, self.kind("StreamingError").FromString(_detail(details))


def _detail(status: bytes) -> bytes:
    """Returns the value of the first detail of a google.rpc.Status."""
    return bytes(error_pb2.Status.FromString(status).details[0].value)


@functools.cache
def keep_poller() -> None:
    """Keeps gRPC's poller to the end of the process, as wal/network does: the last channel would join its thread on the loop."""
    grpc.aio.init_grpc_aio()


def varint(number: int) -> bytes:
    """Returns a number as protobuf writes it."""
    number &= (1 << 64) - 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
