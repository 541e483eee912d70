"""Admin: the calls of Pulsar's admin REST that logs and message streams need.

Owns: the requests, and the meaning of their failures. It changes nothing but the caller's own topics.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from wal.errors import InvalidArgumentError, StorageError, WALError
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.positions import TopicLedger

TIMEOUT_S: Final = 10.0
REDIRECTS_MAX: Final = 5
"""A broker redirects to the one that owns the namespace; a proxy or a balancer in between adds a hop or two."""


class Admin:
    """The admin REST of one Pulsar. Every method blocks, for `TIMEOUT_S` at most.

    Raises StorageError when the REST does not answer, InvalidArgumentError when it refuses this client.
    """

    def __init__(self, address: PulsarAddress) -> None:
        self._address = address
        self._opener: urllib.request.OpenerDirector | None = None

    def check_namespace(self) -> None:
        """Raises InvalidArgumentError when the namespace does not exist."""
        path = self._address.path
        if self._request("GET", f"namespaces/{path}", missing=None) is None:
            raise InvalidArgumentError(
                f"Pulsar at {self._address.admin} has no namespace {path}: create it (pulsar-admin namespaces create {path}) or name "
                "another one in the location"
            )

    def message_bytes_max(self) -> int | None:
        """Returns the broker's `maxMessageSize`; None if the answer lacks it; only administrators get it."""
        try:
            answer = self._request("GET", "brokers/configuration/runtime")
            return int(answer["maxMessageSize"])
        except (WALError, KeyError, TypeError, ValueError):
            return None

    def policy(self, topic: str, name: str) -> Any:
        """Returns a policy as it applies to this topic: its own, else its namespace's, else the broker's."""
        return self._request("GET", f"{_path(topic)}/{name}?applied=true", missing=None)

    def namespace_policy(self, name: str) -> Any:
        """Returns a policy of the namespace; None when it has none."""
        return self._request("GET", f"namespaces/{self._address.path}/{name}", missing=None)

    def make_topic(self, topic: str) -> None:
        """Creates an empty topic without partitions, unless the topic exists."""
        try:
            self._request("PUT", _path(topic))
        except StorageError as error:
            if not isinstance(error.__cause__, urllib.error.HTTPError) or error.__cause__.code != 409:
                raise

    def partitions(self, topic: str) -> int:
        """Returns the number of partitions of a topic: 0 for a topic without partitions or a missing one."""
        answer = self._request("GET", f"{_path(topic)}/partitions?checkAllowAutoCreation=false", missing=None)
        return 0 if answer is None else int(answer["partitions"])

    def subscriptions(self, topic: str) -> list[str]:
        """Returns the names of a topic's subscriptions; empty for a missing topic."""
        answer: list[str] | None = self._request("GET", f"{_path(topic)}/subscriptions", missing=None)
        return answer or []

    def disable_deduplication(self, topic: str) -> None:
        """Switches deduplication off for this topic only."""
        self._request("POST", f"{_path(topic)}/deduplicationEnabled", body=False)

    def ledgers(self, topic: str) -> list[TopicLedger] | None:
        """Returns the current ledgers of a topic, oldest first; None for a missing topic."""
        answer = self._request("GET", f"{_path(topic)}/internalStats", missing=None)
        if answer is None:
            return None
        ledgers = [TopicLedger(each["ledgerId"], each["entries"], each["size"]) for each in answer["ledgers"]]
        if ledgers:
            # The list has no entries of the open ledger.
            ledgers[-1].entries = max(ledgers[-1].entries, answer["currentLedgerEntries"])
            ledgers[-1].size = max(ledgers[-1].size, answer["currentLedgerSize"])
        return [ledger for at, ledger in enumerate(ledgers, 1) if ledger.entries or at == len(ledgers)]

    def last(self, topic: str) -> tuple[int, int] | None:
        """Returns (ledger, entry) of the newest message of a topic; None without a message or a topic."""
        answer = self._request("GET", f"{_path(topic)}/lastMessageId", missing=None)
        return None if answer is None or answer["entryId"] < 0 else (answer["ledgerId"], answer["entryId"])

    def producers(self, topic: str) -> int:
        """Returns the number of producers that are connected to a topic now."""
        answer = self._request("GET", f"{_path(topic)}/stats", missing=None)
        return len((answer or {}).get("publishers", ()))

    def _request(self, method: str, path: str, body: object = None, missing: object = ...) -> Any:
        url = f"{self._address.admin}/admin/v2/{path}"
        request = urllib.request.Request(url, method=method, headers={"Accept": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._address.token is not None:
            request.add_header("Authorization", f"Bearer {self._address.token.reveal()}")
        try:
            with self._open(request) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:500]
            if error.code in (401, 403):
                raise self._refused(url, error.code, text) from error
            if error.code == 404 and missing is not ...:
                return missing
            raise StorageError(f"Pulsar's admin REST answered {method} {url} with {error.code}: {text}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise StorageError(
                f"Pulsar's admin REST at {self._address.admin} did not answer: {reason}; is it running, and is that its address "
                "(setting pulsar_admin_url)?"
            ) from error
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError) as error:
            raise StorageError(f"Pulsar's admin REST answered {method} {url} with invalid JSON ({data[:80]!r}): {error}") from error

    def _refused(self, url: str, code: int, text: str) -> InvalidArgumentError:
        if self._address.token is None:
            return InvalidArgumentError(
                f"Pulsar wants a token ({url} answered {code}): give one in the setting pulsar_token, or in WAL_PULSAR_TOKEN"
            )
        return InvalidArgumentError(
            f"Pulsar does not accept the token of the setting pulsar_token for {self._address.path} ({url} answered {code}: {text}): is "
            "it whole, not expired, and of a role that may produce and consume there?"
        )

    def _open(self, request: urllib.request.Request) -> Any:
        if self._opener is None:
            # Without proxies: requests carry the token, and the environment may name a proxy for other programs.
            handlers: list[urllib.request.BaseHandler] = [_Redirects(), urllib.request.ProxyHandler({})]
            if self._address.tls_authority is not None or request.type == "https":
                context = ssl.create_default_context(cafile=self._address.tls_authority)
                handlers.append(urllib.request.HTTPSHandler(context=context))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener.open(request, timeout=TIMEOUT_S)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows Pulsar's redirects to another broker (307, 308) with the same method and body, which urllib does for GET only.

    The token is sent along, since the other broker asks for it too, but never from https to http.
    """

    max_redirections = REDIRECTS_MAX

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.lower().startswith("https:") and req.has_header("Authorization"):
            raise StorageError(
                f"Pulsar's admin REST redirects {req.get_method()} {req.full_url} to {newurl}: the token is not sent without TLS; give "
                "the brokers' web service a TLS address, or name the right one in pulsar_admin_url"
            )
        if code not in (307, 308):
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        kept = {name: value for name, value in req.header_items() if name.lower() not in ("host", "content-length")}
        return urllib.request.Request(newurl, data=req.data, headers=kept, method=req.get_method())


def _path(topic: str) -> str:
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{urllib.parse.quote(name, safe='')}"
