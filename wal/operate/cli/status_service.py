"""StatusService: a client, over HTTP, of the status service of the process that has a log open for writing.

A process that serves one writes its address into the file STATUS beside LOCK. Commands that change a log go through it, because only that
process may write; the token is the setting `token` (WAL_TOKEN). Needs no extra. Its calls block.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

from wal.errors import AuthenticationError, InvalidArgumentError, StorageError, UnavailableError
from wal.location import Location
from wal.runtime.secret import Secret
from wal.settings import Settings

TIMEOUT_S: Final = 30.0


class StatusService:
    """The service at `address`, a URL."""

    def __init__(self, address: str, token: str | Secret | None) -> None:
        self.address: str = address
        self._token = None if token is None else Secret.of(token)

    @classmethod
    def of(cls, location: Location, settings: Settings) -> StatusService | None:
        """Returns the service of the process that has the journal open for writing; None without such a process or service."""
        from wal.operate.inspect.outside import writer_of  # most commands never need it

        if location.path is None:
            return None
        address = writer_of(location.path).status_address
        return None if address is None else cls(address, settings.token)

    def get(self, path: str) -> Any:
        """Returns the answer of a path, such as `/api/live`. Raises UnavailableError, AuthenticationError or StorageError."""
        return self._ask("GET", path, None)

    def act(self, action: str, **arguments: Any) -> dict[str, Any]:
        """Performs an action, such as `append`; returns its result.

        Raises InvalidArgumentError if the action is rejected, AuthenticationError without the token, UnavailableError without an answer
        (the outcome is then unknown), and StorageError for any other failure.
        """
        answer: dict[str, Any] = self._ask("POST", f"/api/actions/{action}", json.dumps(arguments))
        return answer

    def _ask(self, method: str, path: str, body: str | None) -> Any:
        headers = {} if body is None else {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token.reveal()}"
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
            answer = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise UnavailableError(f"the status service of the log at {self.address} does not answer: {error}") from error
        finally:
            connection.close()
        if status == 200:
            return answer
        reason = str(answer.get("text", answer)) if isinstance(answer, dict) else str(answer)
        if status == 401:
            raise AuthenticationError(f"{self.address}: {reason} (give the token of the status service as WAL_TOKEN)")
        if status in (400, 413):
            raise InvalidArgumentError(reason)
        raise StorageError(f"{self.address}: {reason}")
