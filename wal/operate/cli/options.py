"""The options of a command that serves a log: those of the log are `Settings`, those of the server are an `Access`.

Both come from a TOML file (the server's from its table `[server]`), overridden by variables (`WAL_…`, the server's `WAL_SERVER_…`), and
those by flags. A secret has no flag, since other users of the machine can read flags. The flags need no extra; an `Access` needs `cluster`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wal.errors import InvalidArgumentError
from wal.runtime.secret import Secret
from wal.settings import MEANINGS, SERVER_BOUNDS, SERVER_PREFIX, ServerBounds, Settings, server_table, setting_from_text

if TYPE_CHECKING:
    from wal.rpc.auth import Token
    from wal.serve.access import Access


_FILES: Final = ("tls_certificate", "tls_key", "tls_ca")
_SERVER: Final[Mapping[str, str]] = {
    "listen": "where to listen; port 0 is a free one (default 127.0.0.1:8810)",
    "advertise": "HOST:PORT at which clients reach the server, if that is not where it listens",
    "tls_certificate": "the server's certificate (PEM); clients then need TLS",
    "tls_key": "the key of that certificate (PEM)",
    "tls_ca": "the authority (PEM) whose certificate every client has to show",
    "token_file": "a file with the tokens that clients may show, one a line: TOKEN, or NAME RIGHTS TOKEN",
    "metrics": "where to serve metrics for Prometheus, to everybody who reaches it (needs the extra metrics)",
    "status": "where to serve the status page, on loopback without a token (needs the extra status)",
    "insecure": "listens beyond loopback without TLS or without a token",
}
_ADDRESSES: Final = ("listen", "advertise", "metrics", "status")
_SECRET: Final = "token"
"""The only option of the server without a flag."""
_NO_FLAGS: Final = frozenset(("pulsar_token", "token"))


def add_options(parser: argparse.ArgumentParser, *, page: bool = False) -> None:
    """Adds the flags of the server, and one for each setting of the log; with `page` also those of a status page."""
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings, and those of the server in its table [server]")
    server = parser.add_argument_group("server", f"Also in the file's table [server], and as {SERVER_PREFIX}… variables.")
    for name, text in _SERVER.items():
        if name == "status" and not page:
            continue
        if name == "insecure":
            server.add_argument("--insecure", action="store_const", const=True, help=text)
        else:
            server.add_argument(_flag(name), metavar="HOST:PORT" if name in _ADDRESSES else "FILE", help=text)
    bounds = ServerBounds()
    for name, text in SERVER_BOUNDS.items():
        default_text = _shown(name, getattr(bounds, name))
        server.add_argument(_flag(name), metavar="VALUE", help=f"{text} (default {default_text})")
    log = parser.add_argument_group(
        "log",
        "The settings of the log (docs/reference/settings.md). Also in the file, and\n"
        "  as WAL_… variables. A size is a number of bytes, or has a unit: 64KiB, 8MiB,\n"
        "  1GiB, 2TiB. A time is a number of seconds, or has a unit: 500ms, 30s, 15m,\n"
        "  12h, 7d.",
    )
    defaults = Settings()
    for name in Settings.__struct_fields__:
        if name not in _NO_FLAGS:
            default = getattr(defaults, name)
            text = MEANINGS[name] if default is None else f"{MEANINGS[name]} (default {_shown(name, default)})"
            log.add_argument(_flag(name), metavar="VALUE", dest=f"setting_{name}", help=text)


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Returns the settings of the log. Raises InvalidArgumentError that names the flag, the variable or the file with a wrong value."""
    if "WAL_TOKEN" in os.environ:
        raise InvalidArgumentError(
            "environment variable WAL_TOKEN is the token that a client shows: name this server's tokens in WAL_SERVER_TOKEN or "
            "with --token-file, and take WAL_TOKEN out of its environment"
        )
    flags: dict[str, Any] = {}
    for name in Settings.__struct_fields__:
        if (text := getattr(arguments, f"setting_{name}", None)) is not None:
            flags[name] = setting_from_text(_flag(name), name, text)
    settings = Settings.load(arguments.config, **flags)
    if settings.token is not None:
        raise InvalidArgumentError(
            f"settings file {arguments.config!r}: token is what a client shows: name the tokens that this server takes in the "
            "table [server]"
        )
    return settings


def access_from(arguments: argparse.Namespace) -> Access:
    """Returns the access options of the server.

    Raises InvalidArgumentError for unknown names and wrong values, ImportError without the extra.
    """
    from wal.network import TlsFiles
    from wal.serve.access import Access

    options: dict[str, Any] = {}
    bounds: dict[str, tuple[str, Any]] = {}
    if arguments.config is not None:
        where, table = server_table(arguments.config)
        for name, value in table.items():
            _take(options, bounds, where, name, value)
    for variable, text in os.environ.items():
        if variable.startswith(SERVER_PREFIX):
            where, name = f"environment variable {variable}", variable.removeprefix(SERVER_PREFIX).lower()
            value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text) if name == "insecure" else text
            _take(options, bounds, where, name, value)
    for name in SERVER_BOUNDS:
        if (value := getattr(arguments, name)) is not None:
            bounds[name] = _flag(name), value
    options |= {name: value for name in _SERVER if (value := getattr(arguments, name, None)) is not None}
    certificate, key, ca = (options.get(name) for name in _FILES)
    if ca is not None and certificate is None:
        raise InvalidArgumentError("tls_ca is for a server with TLS: give tls_certificate and tls_key with it, or leave it out")
    tls = None if certificate is None and key is None else TlsFiles(ca=ca, certificate=certificate, key=key)
    tokens = _tokens(options.get("token_file"), options.get(_SECRET))
    insecure = bool(options.get("insecure", False))
    addresses = {name: options[name] for name in _ADDRESSES if name in options}
    return Access(tls=tls, tokens=tokens, insecure=insecure, bounds=ServerBounds.of(bounds), **addresses)


def _tokens(file: str | None, token: str | None) -> tuple[Token, ...]:
    from wal.rpc.auth import Token, tokens_in

    where, tokens = "WAL_SERVER_TOKEN, or token in [server]", []
    try:
        if token is not None:
            tokens.append(Token(Secret(token)))
        if file is not None:
            where = f"token_file={file!r}"
            if not (file_tokens := tokens_in(Path(file).expanduser().read_text())):
                raise InvalidArgumentError("it holds no token: write one a line")
            tokens += file_tokens
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidArgumentError(f"{where} cannot be read: {reason}") from None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error}") from None
    return tuple(tokens)


def _take(options: dict[str, Any], bounds: dict[str, tuple[str, Any]], where: str, name: str, value: object) -> None:
    """Stores an option of the server from a file or a variable."""
    if name in SERVER_BOUNDS:
        bounds[name] = where, value
    elif name in _SERVER or name == _SECRET:
        options[name] = _checked(where, name, value)
    else:
        names = ", ".join(sorted((*_SERVER, _SECRET, *SERVER_BOUNDS)))
        raise InvalidArgumentError(f"{where}: no setting {name!r} of the server; accepted are: {names}")


def _checked(where: str, name: str, value: object) -> object:
    kind = bool if name == "insecure" else str
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{where}: {name} must be {'true or false' if kind is bool else 'a text'}")
    return value


def _shown(name: str, default: object) -> str:
    """Returns the default of a setting in the form in which a user writes it."""
    if isinstance(default, int) and "bytes" in name:
        return f"{default >> 20}MiB"
    return str(default).lower()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
