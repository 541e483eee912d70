"""SparkLocation: the location of a log in the options of a read or a write. Pure.

Owns the options that name a log, for every part of Spark that needs one. A journal is named by `path`, and an archive by `path` too, as
`archive:URL`; a log on the network by `address`,
the location of its server; a log on Pulsar by `service.url` together with `kv`, its metadata, and the credentials. No repr and no error
shows a password or a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.location import (
    PulsarLocation,
    ServerLocation,
    absolute_path,
    check_admin_url,
    check_token,
    parse_kv,
    parse_location,
    with_password,
)
from wal.runtime.secret import Secret, shown

_KINDS: Final = ("path", "address", "service.url")
_OF_PULSAR: Final = ("kv", "kv.password", "admin.url", "token", "tls.authority")
"""The options that are valid only with service.url, except for `_OF_SERVERS`."""
_OF_SERVERS: Final = ("token",)
"""The options of `_OF_PULSAR` that are valid with address too."""
LOCATION_OPTIONS: Final = (*_KINDS, *_OF_PULSAR)


class SparkLocation(msgspec.Struct, frozen=True):
    """The location of a log. `kind` is path, address or service.url. The other fields belong to service.url, and `token` also to address.

    `value` is the text from Spark's options: print it with `shown`, as the repr does.
    """

    kind: str
    value: str
    kv: Secret | None = None
    admin_url: str | None = None
    token: Secret | None = None
    tls_authority: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SparkLocation:
        """Returns the location in these options (names in lower case). Raises InvalidArgumentError for no location, and for
        contradictions.
        """
        kind = only_one(options, *_KINDS)
        value = "" if kind is None else options[kind].strip()
        if kind is None or not value:
            raise InvalidArgumentError(
                "no log is named: give path (a journal's directory, also by load(path) or save(path)), address (a server, "
                "wal://host:port), or service.url (Pulsar)"
            )
        beside = {name: options[name].strip() for name in _OF_PULSAR if name in options}
        if strange := [name for name in beside if kind != "service.url" and (kind == "path" or name not in _OF_SERVERS)]:
            raise InvalidArgumentError(
                f"{strange[0]} belongs to a log on Pulsar{' or on the network' * (strange[0] in _OF_SERVERS)}: it goes with service.url"
                f"{', or with address' * (strange[0] in _OF_SERVERS)}"
            )
        kv, password, admin_url, token, authority = (beside.get(name) or None for name in _OF_PULSAR)
        return cls(kind, value, _metadata(kv, password), admin_url, Secret(token) if token else None, authority)

    @classmethod
    def named(cls, path: str | None, options: Mapping[str, str] | None) -> SparkLocation:
        """Returns the location of a journal's directory, or of the log that these options of a source name; other options are ignored."""
        if (path is None) == (options is None):
            raise InvalidArgumentError("the log is named by path=… or by options=…: give one of them")
        if options is None:
            return cls("path", path or "")
        lowercase_options = {name.lower(): value for name, value in options.items()}
        return cls.of({name: value for name, value in lowercase_options.items() if name in LOCATION_OPTIONS})

    def directory(self) -> Path | None:
        """Returns the directory of a journal, or None for another kind of log, an archive for example.

        Raises InvalidArgumentError if path names neither.
        """
        if self.kind != "path":
            return None
        # Spark and Hadoop write a path as file:/data or file:///data too.
        parsed = parse_location(re.sub(r"^file:(//)?(?=/)", "", self.value))
        if parsed.archive is not None:
            return None
        if parsed.path is None:
            raise InvalidArgumentError(
                f"path={shown(self.value)!r} names no directory: {parsed} has no files that Spark could use; give the directory of a "
                "journal, address for a log on the network, or service.url and kv for a log on Pulsar"
            )
        return parsed.path

    def archive(self) -> str | None:
        """Returns the location of an archive, with an absolute directory if it has one, or None for another kind of log."""
        is_archive = self.kind == "path" and self.value.startswith("archive:")
        return str(parse_location(self.value)) if is_archive else None

    def servers(self) -> ServerLocation | None:
        """Returns the servers of a log on the network, or None for another kind of log; checks that the token is well-formed too."""
        if self.kind != "address":
            return None
        servers = parse_location(self.value).servers if self.value.startswith(("wal://", "wal+ssl://")) else None
        if servers is None:
            raise InvalidArgumentError(f"address={shown(self.value)!r} names no server: use wal://host:port, or wal+ssl://… for TLS")
        if self.token is not None:
            check_token("the option token", self.token)
        return servers

    def pulsar(self) -> tuple[PulsarLocation, Secret]:
        """Returns the namespace of a log on Pulsar and the location of its metadata; checks that the other options are well-formed too."""
        parsed = parse_location(self.value).pulsar
        if parsed is None:
            raise InvalidArgumentError(
                f"service.url={shown(self.value)!r} names no Pulsar: use pulsar://host:port/tenant/namespace, or pulsar+ssl://… for TLS"
            )
        if self.kv is None:
            raise InvalidArgumentError(
                f"service.url={shown(self.value)!r} names the log, but not its metadata: give the option "
                "kv=etcd://host:port/root, as the log was opened with"
            )
        if self.admin_url is not None:
            check_admin_url("admin.url", self.admin_url)
        if self.token is not None:
            check_token("the option token", self.token)
        return parsed, self.kv

    @property
    def authority(self) -> str | None:
        """The absolute path of the certificates against which Pulsar's certificate is checked."""
        return self.tls_authority and str(absolute_path(self.tls_authority, "the option tls.authority"))

    @property
    def is_kv_file(self) -> bool:
        """True if the metadata of a log on Pulsar is a sqlite file, which only one process can open."""
        return isinstance(parse_kv(self.pulsar()[1]), Path)

    def opening(self) -> tuple[str | Path, dict[str, Any]]:
        """Returns the arguments of `open_wal` for this log: the location, and its settings."""
        if (directory := self.directory()) is not None:
            return directory, {}
        if (archive := self.archive()) is not None:
            return archive, {}
        if self.servers() is not None:
            return self.value, {} if self.token is None else {"token": self.token}
        place, kv = self.pulsar()
        settings = {"pulsar_admin_url": self.admin_url, "pulsar_token": self.token, "pulsar_tls_authority": self.authority}
        return str(place), {"kv": kv, **{name: value for name, value in settings.items() if value is not None}}

    def __repr__(self) -> str:
        return f"SparkLocation({self.kind!r}, {shown(self.value)!r})"


def only_one(options: Mapping[str, str], *names: str) -> str | None:
    """Returns the value of the only set option of these, or None; raises InvalidArgumentError when more than one is set."""
    option_names = [name for name in names if name.lower() in options]
    if len(option_names) > 1:
        raise InvalidArgumentError(f"{' and '.join(option_names)} contradict each other: give one of them")
    return option_names[0] if option_names else None


def _metadata(kv: str | None, password: str | None) -> Secret | None:
    """Returns the location of the metadata. The password has its own option, because Spark shows the value of `kv` in plans and its UI."""
    if kv is not None and shown(kv) != kv:
        raise InvalidArgumentError(
            f"kv={shown(kv)!r} holds a password, and Spark would show it in its plans: give it in the option kv.password, which Spark "
            "redacts, or name a file that every worker has: kv=etcd://user@host:port/root?password_file=…"
        )
    if password is not None:
        if kv is None:
            raise InvalidArgumentError("kv.password goes with kv=etcd://user@host:port/root, which is missing")
        return with_password(kv, password)
    return None if kv is None else Secret.of_url(kv)
