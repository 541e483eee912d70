"""From the options that say where the log is to the source that reads it."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from wal.errors import InvalidArgumentError
from wal.location import absolute_path, check_admin_url, check_token, parse_kv, parse_location
from wal.secret import shown
from wal.spark.frame_source import FrameLogs, FrameSource
from wal.spark.journal_frames import JournalSource
from wal.spark.options import Location

__all__ = ["opened", "source_of", "without_scheme"]

_OPEN_MAX: Final = 4
_lock: Final = threading.RLock()
_logs: Final[OrderedDict[tuple[int, int, FrameSource], FrameLogs]] = OrderedDict()


def without_scheme(path: str) -> str:
    """The path in a `file:` URL as Spark and Hadoop write them (`file:/data`, `file:///data`); any other text as it is."""
    return re.sub(r"^file:(//)?(?=/)", "", path)


def source_of(location: Location) -> FrameSource:
    """The source at this location. InvalidArgumentError for what cannot be read (yet)."""
    if location.kind == "service.url":
        return _on_pulsar(location)
    if location.kind != "path":
        raise InvalidArgumentError(
            f"{location.kind}={shown(location.value)!r}: this release reads journals and Pulsar: give path, the journal's directory, or "
            "service.url"
        )
    parsed = parse_location(without_scheme(location.value))
    if parsed.path is None:
        raise InvalidArgumentError(
            f"path={shown(location.value)!r} names no directory: {parsed} has no files that Spark could read; give the directory of a "
            "journal, or service.url and kv for a log on Pulsar"
        )
    return JournalSource(str(parsed.path))


def opened(source: FrameSource) -> FrameLogs:
    """The logs of this source, for this thread of this process; opened if they are not, or are no longer the ones that lie there."""
    key = (os.getpid(), threading.get_ident(), source)
    with _lock:
        logs = _logs.get(key)
        if logs is None or not logs.is_current():
            logs = _logs[key] = source.open()
            while len(_logs) > _OPEN_MAX:
                _logs.popitem(last=False)
        _logs.move_to_end(key)
        return logs


def _on_pulsar(location: Location) -> FrameSource:
    from wal.backends.pulsar import PulsarAddress  # most logs are journals
    from wal.spark.pulsar_frames import PulsarSource

    parsed = parse_location(location.value).pulsar
    if parsed is None:
        raise InvalidArgumentError(
            f"service.url={shown(location.value)!r} names no Pulsar: use pulsar://host:port/tenant/namespace, or pulsar+ssl://… for TLS"
        )
    if location.kv is None:
        raise InvalidArgumentError(
            f"service.url={shown(location.value)!r} says where the log lies, but not its metadata: give the option "
            "kv=etcd://host:port/root, as the log was opened with"
        )
    if isinstance(parse_kv(location.kv), Path):
        raise InvalidArgumentError(
            f"kv={str(location.kv)!r} is a file, which one process has for itself, and Spark reads in several beside the writer: keep "
            "the metadata of a log that Spark reads in etcd (kv=etcd://host:port/root)"
        )
    if location.admin_url is not None:
        check_admin_url("admin.url", location.admin_url)
    if location.token is not None:
        check_token("the option token", location.token)
    authority = location.tls_authority
    if authority is not None:
        authority = str(absolute_path(authority, "the option tls.authority"))
    address = PulsarAddress(
        parsed.service_url,
        parsed.tenant,
        parsed.namespace,
        admin_url=location.admin_url,
        token=location.token,
        tls_authority=authority,
    )
    return PulsarSource(address, location.kv)
