"""Method: a method of a service, with the types of its messages. It replaces the stubs that grpcio-tools would generate."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

Request = TypeVar("Request")
Response = TypeVar("Response")


class Method(NamedTuple, Generic[Request, Response]):
    """A method: `path` is how gRPC finds it, `request` and `response` are its types."""

    path: str
    request: type[Request]
    response: type[Response]

    def serializers(self) -> dict[str, Any]:
        """Returns the two functions that a client's channel needs."""
        request, response = self.request, self.response
        return {
            "request_serializer": request.SerializeToString,  # type: ignore[attr-defined]
            "response_deserializer": response.FromString,  # type: ignore[attr-defined]
        }
