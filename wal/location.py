"""Locations: one string for the log, and another for its metadata.

This file only parses: it opens nothing and looks at no file. A path becomes absolute, so that it means the same file whatever the current
directory is later, and errors show it whole. A leading `~` or `~user` is expanded; symbolic links are left to the system.

No error shows a password or a token in a location, not even a misplaced one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from wal.errors import InvalidArgumentError
from wal.runtime.secret import Secret, shown

ETCD_PORT: Final = 2379
PULSAR_PORT: Final = 6650
PULSAR_TLS_PORT: Final = 6651
SERVER_PORT: Final = 8810
_SERVER_FORM: Final = "wal://host[:port][,host[:port]…], or wal+ssl://… for TLS"
_PULSAR_FORM: Final = "pulsar://host[:port][,host[:port]…]/tenant/namespace, or pulsar+ssl://… for TLS"
_PULSAR_NAME: Final = re.compile(r"[A-Za-z0-9_=:.-]+")
_ADMIN_URL: Final = re.compile(r"https?://([^/?#@:\[\]\s]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^?#@\s]*)?")
_TOKEN: Final = re.compile(r"[!-~]*")
_ADMIN_FORM: Final = "http://host:port, or https://… for TLS"
_ARCHIVE_FORM: Final = "use archive:s3://bucket/path, archive:gs://bucket/path, or archive: and the directory that wal backup writes"
_ETCD_FORM: Final = "etcd://[user[:password]@]host[:port][,host[:port]…]/root"


class PulsarLocation(msgspec.Struct, frozen=True):
    """A namespace of Pulsar. `service_url` is `pulsar://host:port[,host:port…]`, or `pulsar+ssl://…` with TLS."""

    service_url: str
    tenant: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.service_url}/{self.tenant}/{self.namespace}"


class EtcdLocation(msgspec.Struct, frozen=True):
    """An etcd cluster and a root path in it. The text and the repr show no password."""

    endpoints: tuple[str, ...]
    """The members of the cluster, each as `host:port`."""
    root_path: str
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password: Secret | None = None
    password_file: Path | None = None
    timeout_s: float | None = None
    """The deadline of a call; None: the KV's default."""

    def __str__(self) -> str:
        user = "" if self.user is None else f"{self.user}@"
        return f"etcd{'+ssl' if self.tls else ''}://{user}{','.join(self.endpoints)}/{self.root_path}"

    def __repr__(self) -> str:
        return f"EtcdLocation({str(self)!r})"


class ServerLocation(msgspec.Struct, frozen=True):
    """The servers of one log, each as `host:port`, or the `root` in etcd under which the coordinators of its cluster are found.

    With TLS, it has the PEM files of this side (`wal.network.TlsFiles`).
    """

    addresses: tuple[str, ...]
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    root: EtcdLocation | None = None

    def __str__(self) -> str:
        return str(self.root) if self.root is not None else f"wal{'+ssl' if self.tls else ''}://{','.join(self.addresses)}"


class Location(msgspec.Struct, frozen=True):
    """`scheme` is "journal" (with its directory as `path`), "memory", "pulsar" (with its namespace as `pulsar`), "wal" (with the
    `servers` of a log on the network), or "archive" (with the URL or the absolute directory of the objects as `archive`)."""

    scheme: str
    path: Path | None = None
    pulsar: PulsarLocation | None = None
    servers: ServerLocation | None = None
    archive: str | None = None

    def __str__(self) -> str:
        if self.archive is not None:
            return f"archive:{self.archive}"
        return f"{self.scheme}:{self.path or ''}" if self.path or self.scheme == "memory" else str(self.pulsar or self.servers)


def parse_location(location: str | os.PathLike[str]) -> Location:
    """Parses `data/` or `journal:data/` (a directory), `memory:`, `pulsar://host:port/tenant/namespace` (`pulsar+ssl://…`),
    `wal://host:port[,host:port…]` (a log on the network; `wal+ssl://…?ca=…&certificate=…&key=…`), `etcd://host:port/root` (the log of
    the cluster at this root), or `archive:s3://bucket/path`, `archive:gs://…`, `archive:backups/` (what `wal backup` has stored).

    A directory's path becomes absolute, with a leading `~` expanded. Any other text raises an InvalidArgumentError that lists the forms.
    """
    if isinstance(location, os.PathLike):
        return Location("journal", absolute_path(str(Path(location)), "location"))
    if not isinstance(location, str):
        raise TypeError(f"a location is a str or a path, not {type(location).__name__}")
    if location == "memory:":
        return Location("memory")
    if location.startswith(("pulsar://", "pulsar+ssl://")):
        return Location("pulsar", pulsar=_parse_pulsar(location))
    if location.startswith(("wal://", "wal+ssl://")):
        return Location("wal", servers=_parse_servers(location))
    if location.startswith(("etcd://", "etcd+ssl://")):
        root = parse_root(location)
        return Location("wal", servers=ServerLocation((), root.tls, root.ca, root.certificate, root.key, root))
    if location.startswith("archive:"):
        return Location("archive", archive=_parse_archive(location.removeprefix("archive:")))
    directory = location
    scheme, colon, rest = location.partition(":")
    if colon and scheme == "journal":
        directory = rest
    elif colon and "/" not in scheme:
        raise InvalidArgumentError(
            f"location {shown(location)!r} is of no known form: use a directory ('data/' or 'journal:data/'), 'memory:', "
            "'pulsar://host:port/tenant/namespace', 'wal://host:port', 'etcd://host:port/root' or 'archive:s3://bucket/path'"
        )
    if not directory or "\0" in directory:
        raise InvalidArgumentError(f"location {location!r} names no directory: use for example 'data/'")
    return Location("journal", absolute_path(directory, "location"))


def absolute_path(path: str, what: str) -> Path:
    """Returns the absolute path, with a leading `~` expanded; symbolic links and `..` are left to the system.

    Raises InvalidArgumentError for an unknown user, for a text that no file can have as its name, or if the current directory was removed;
    the error calls the path `what`.
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise InvalidArgumentError(f"{what} {path!r} has a NUL or a lone surrogate, which no path can have: leave it out")
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise InvalidArgumentError(
            f"{what} {path!r} begins with ~, but no such user has a home directory here: name the directory itself, "
            f"or './{path}' for a directory of that name"
        )
    try:
        return Path(expanded).absolute()
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            f"{what} {path!r} is relative to the current directory, and that was removed: name an absolute path"
        ) from error


def check_admin_url(name: str, url: str) -> None:
    """Raises InvalidArgumentError for a text that is not the URL of an admin REST API, and for a URL with a user or a token.

    The error does not show them; it calls the URL `name`.
    """
    if not _ADMIN_URL.fullmatch(url):
        url_text = shown(url) if "://" in url else "***"  # without a scheme it may be a token that got into the wrong setting
        raise InvalidArgumentError(
            f"{name}={url_text!r} is not the address of an admin REST: use {_ADMIN_FORM}, without a user; a token belongs into the setting "
            "pulsar_token"
        )


def check_token(name: str, token: Secret) -> None:
    """Raises InvalidArgumentError, without showing the token, if it cannot be sent in an HTTP header."""
    if not _TOKEN.fullmatch(token.reveal()):
        raise InvalidArgumentError(
            f"{name} holds a character that no token has, such as a line break or a space: give the token alone, without the line's end"
        )


def _parse_pulsar(location: str) -> PulsarLocation:
    scheme, _, rest = location.partition("://")
    if "@" in rest:
        raise InvalidArgumentError("a location on Pulsar names no user: give a token in the setting pulsar_token, or in WAL_PULSAR_TOKEN")
    hosts, _, path = rest.partition("/")
    names = path.split("/")
    if len(names) != 2 or not all(_PULSAR_NAME.fullmatch(name) for name in names):
        raise InvalidArgumentError(f"location {shown(location)!r} names no tenant and namespace: use {_PULSAR_FORM}")
    places = []
    for host in hosts.split(","):
        name, colon, port = host.rpartition(":")
        if host.endswith("]") or not colon:
            name, port = host, str(PULSAR_TLS_PORT if scheme == "pulsar+ssl" else PULSAR_PORT)
        if not name or not _is_port(port):
            raise InvalidArgumentError(f"location {shown(location)!r} names an invalid host or port: use {_PULSAR_FORM}")
        places.append(f"{name}:{port}")
    return PulsarLocation(f"{scheme}://{','.join(places)}", *names)


def check_archive(location: Location, archive: str | None) -> None:
    """Raises InvalidArgumentError for the setting `archive` where the log cannot archive itself, or for an archive inside of its log."""
    if archive is None:
        return
    if location.path is None:
        raise InvalidArgumentError(
            f"setting archive={archive!r}: the log at {location} is not a journal, and only a journal archives itself; leave the setting "
            "out"
        )
    if "://" not in archive and Path(archive).absolute().is_relative_to(location.path.absolute()):
        raise InvalidArgumentError(f"setting archive={archive!r} lies in the log's own directory {location.path}: name another directory")


def _parse_archive(place: str) -> str:
    """Returns the URL, or the absolute path of a directory."""
    if not place or "\0" in place:
        raise InvalidArgumentError(f"location 'archive:{place}' names no archive: {_ARCHIVE_FORM}")
    if "://" not in place:
        return str(absolute_path(place, "location"))
    if shown(place) != place or "?" in place or "#" in place:
        raise InvalidArgumentError(
            f"location 'archive:{shown(place)}' has more than a bucket and a path: {_ARCHIVE_FORM}; credentials come from the environment"
        )
    return place.rstrip("/")


def _parse_servers(location: str) -> ServerLocation:
    scheme, _, rest = location.partition("://")
    hosts, _, query = rest.partition("?")
    what = f"location {shown(location)!r}"
    if "@" in rest:
        raise InvalidArgumentError(f"{what} names a user: a server takes a token, in the setting token or in WAL_TOKEN")
    files: dict[str, Path] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if scheme != "wal+ssl" or name not in ("ca", "certificate", "key") or not value:
            raise InvalidArgumentError(
                f"{what} has the option {name!r}: wal+ssl:// takes ca, certificate and key, each with the path of a file, and wal:// none"
            )
        files[name] = absolute_path(value, f"{scheme}://…?{name}=")
    addresses = tuple(_address(host, SERVER_PORT, what, _SERVER_FORM) for host in hosts.removesuffix("/").split(","))
    return ServerLocation(addresses, scheme == "wal+ssl", files.get("ca"), files.get("certificate"), files.get("key"))


def parse_kv(kv: str | Secret) -> EtcdLocation | Path:
    """Parses the setting `kv`: the path of a sqlite file, or `etcd://host:port[,host:port…]/root`, `etcd+ssl://` with TLS.

    A user is given as `user:password@` before the hosts (percent-encoded), or with `?password_file=…`; TLS takes PEM files in
    `?ca=…&certificate=…&key=…`, and `?timeout_s=…` is the deadline of a call. Any other text is an InvalidArgumentError that lists the
    accepted forms and shows no password.
    """
    text = Secret.of_url(kv).reveal()
    setting = f"setting kv={shown(text)!r}"
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text or "\0" in text:
            raise InvalidArgumentError(f"{setting} names no file: give the path of a sqlite file, or {_ETCD_FORM}")
        if shown(text) != text:
            raise InvalidArgumentError(
                f"{setting} names a user and a host, but no scheme: use {_ETCD_FORM}; the path of a file of this name begins with ./"
            )
        return absolute_path(text, "setting kv")
    if scheme not in ("etcd", "etcd+ssl"):
        raise InvalidArgumentError(
            f"setting kv begins with {scheme}://, which is of no known form: give the path of a sqlite file, or {_ETCD_FORM}"
        )
    rest, _, query = rest.partition("?")
    authority, _, root_path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    if "@" in root_path or "@" in query or "@" in userinfo:
        raise InvalidArgumentError(
            f"{setting} has a '/', a '?' or an '@' before its last '@': percent-encode these in a password, a root path or a file's "
            f"name (%2F, %3F, %40): {_ETCD_FORM}"
        )
    if not unquote(root_path).strip("/"):
        raise InvalidArgumentError(f"{setting} names no root path, under which the metadata lies: {_ETCD_FORM}")
    options = _etcd_options(query, scheme)
    if password and "password_file" in options:
        raise InvalidArgumentError("setting kv gives a password and a password_file: give one of them")
    return EtcdLocation(
        tuple(_address(host, ETCD_PORT, setting, _ETCD_FORM) for host in hosts.split(",")),
        unquote(root_path).strip("/"),
        scheme == "etcd+ssl",
        user=unquote(user) or None,
        password=Secret(unquote(password)) if password else None,
        **options,
    )


def parse_root(root: str) -> EtcdLocation:
    """Parses the root of a cluster, `etcd://host:port[,host:port…]/root` with the options of the setting `kv`.

    Raises InvalidArgumentError for any other text, and for a root with a password, which command lines and log lines would show.
    """
    parsed = parse_kv(root)
    if isinstance(parsed, Path):
        raise InvalidArgumentError(f"{shown(root)!r} is not the root of a cluster: use {_ETCD_FORM}, without a password")
    if parsed.password is not None:
        raise InvalidArgumentError(f"the root {parsed} is given with a password, which others could see: give ?password_file=… with it")
    return parsed


def with_password(kv: str, password: str) -> Secret:
    """Returns the `kv` setting `etcd://user@host/root` with this password. Raises InvalidArgumentError if it has no user, or a password."""
    location = parse_kv(kv)
    if isinstance(location, Path) or location.user is None or location.password or location.password_file is not None:
        raise InvalidArgumentError(f"kv={shown(kv)!r} takes no password: use etcd://user@host:port/root with it")
    return Secret.of_url(kv.replace("@", f":{quote(password, safe='')}@", 1))


def _etcd_options(query: str, scheme: str) -> dict[str, Any]:
    files = ("password_file",) if scheme == "etcd" else ("ca", "certificate", "key", "password_file")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "timeout_s":
            options[name] = _seconds(value)
        elif name in files and value:
            options[name] = absolute_path(value, f"setting kv={scheme}://…?{name}=")
        else:
            wrong = name if re.fullmatch(r"[a-z_]+", name) else "***"  # it may be the rest of a password
            raise InvalidArgumentError(
                f"setting kv={scheme}://…?{wrong}= is not understood there: accepted are {', '.join(files)}, each with the path "
                f"of a file, and timeout_s with a number of seconds"
            )
    return options


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:  # the text is not shown: it may be the rest of a password
        wrong = "*** is not a number of seconds"
    else:
        if 0 < seconds < float("inf"):
            return seconds
        wrong = f"{seconds} is not a number of seconds above 0"
    raise InvalidArgumentError(f"setting kv=etcd://…?timeout_s={wrong}: write for example timeout_s=30")


def _address(host: str, default_port: int, what: str, form: str) -> str:
    name, colon, port = host.rpartition(":")
    if host.endswith("]") or not colon:  # an IPv6 address in brackets has colons of its own
        name, port = host, str(default_port)
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if not bare or (":" in bare) != (bare != name) or not _is_port(port):
        raise InvalidArgumentError(f"{what} names an invalid host or port: use {form}, an IPv6 address in [brackets]")
    return f"{name}:{port}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536
