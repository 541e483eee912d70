"""The servers that the settings name: the KV of the metadata (a sqlite file, or a root path in etcd), and the address of Pulsar.

Owns: opening a KV from its location, reading the password file, and the assignment of the metadata's root paths to their owners. It imports
etcd's client only when an `etcd://` location is opened. The caller closes the KV.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wal.errors import InvalidArgumentError
from wal.frame.codec import load_zstd
from wal.location import EtcdLocation, Location, PulsarLocation, parse_kv
from wal.runtime.async_only import import_late
from wal.runtime.secret import Secret
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.kv import OPERATIONS_MAX, KVBase, SqliteKV

if TYPE_CHECKING:
    from wal.storage.kv.etcd import EtcdKV
    from wal.storage.pulsar.address import PulsarAddress


BROADCAST_ROOT: Final = "broadcasts"
"""The root path of the broadcaster's records."""
CURSOR_ROOT: Final = "cursors"
"""The root path of cursors, if the log has no directory for them."""
HOME_ROOT: Final = "homes"
"""The root path of the homes of cursors that move with transactions."""
IDS_KEY: Final = "ids/next"
"""The key of the numbers that clients allocate (`wal.timestamp.IdAllocator`)."""
PULSAR_ROOT: Final = "pulsar"
"""The root path of the Pulsar backend's records."""


def pulsar_address(location: PulsarLocation, settings: Settings) -> PulsarAddress:
    """Returns the address of the Pulsar at this location, with the credentials from the settings."""
    from wal.storage.pulsar.address import PulsarAddress  # most logs are journals

    return PulsarAddress(
        location.service_url,
        location.tenant,
        location.namespace,
        admin_url=settings.pulsar_admin_url,
        token=Secret.of(settings.pulsar_token) if settings.pulsar_token else None,
        tls_authority=settings.pulsar_tls_authority,
    )


async def check_requirements(location: Location, settings: Settings) -> None:
    """Raises ImportError for a missing package, or InvalidArgumentError for a missing file, that opening this log needs.

    It comes before anything is created, so that no part of a log is left by an opening that cannot succeed.
    """
    if settings.compression == "zstd":
        await in_thread(load_zstd)
    chosen = None if settings.kv is None else parse_kv(settings.kv)
    if isinstance(chosen, EtcdLocation):
        await import_late("wal.storage.kv.etcd")  # it needs grpcio, an extra
        from wal.network import TlsFiles

        if chosen.tls:
            await TlsFiles(ca=chosen.ca, certificate=chosen.certificate, key=chosen.key).credentials()
        await in_thread(_user, chosen)
    if location.pulsar is not None:
        await import_late("wal.storage.pulsar.connection")
        from wal.storage.pulsar.connection import check_requirements as check_pulsar

        await in_thread(check_pulsar, pulsar_address(location.pulsar, settings))


async def open_metadata(kv: str | Secret) -> KVBase:
    """Opens the KV at `kv`, a path or `etcd://…`. Raises InvalidArgumentError for an unknown form, and the errors of the KV."""
    chosen = parse_kv(kv)
    return await SqliteKV.open(chosen) if isinstance(chosen, Path) else await open_etcd(chosen)


async def load_metadata(kv: str | Secret) -> dict[str, str]:
    """Returns every record of the KV at `kv` by its key, as they are at one moment; raises as `open_metadata` does."""
    opened = await open_metadata(kv)
    try:
        keys, values = await opened.load_with_prefix("")
        return dict(zip(keys, values, strict=True))
    finally:
        await opened.close()


def broadcasts_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the broadcaster's records among these of the metadata, by their keys below its root path."""
    root = f"{BROADCAST_ROOT}/"
    return {key.removeprefix(root): value for key, value in metadata.items() if key.startswith(root)}


async def save_metadata(kv: KVBase, records: Mapping[str, str]) -> None:
    """Saves these records in several operations: before the last of them, the log is incomplete."""
    pairs, count = list(records.items()), 500 if isinstance(kv, SqliteKV) else OPERATIONS_MAX // 2
    for first in range(0, len(pairs), count):
        await kv.multi_save(dict(pairs[first : first + count]))


async def open_etcd(chosen: EtcdLocation) -> EtcdKV:
    """Opens the KV at a root path in etcd; raises the errors of the KV."""
    await import_late("wal.storage.kv.etcd")
    from wal.network import TlsFiles
    from wal.storage.kv.etcd import EtcdKV
    from wal.storage.kv.etcd.kv import TIMEOUT_S

    tls = TlsFiles(ca=chosen.ca, certificate=chosen.certificate, key=chosen.key) if chosen.tls else None
    return await EtcdKV.open(
        chosen.endpoints,
        root_path=chosen.root_path,
        tls=tls,
        user=await in_thread(_user, chosen),
        timeout_s=TIMEOUT_S if chosen.timeout_s is None else chosen.timeout_s,
    )


def _user(location: EtcdLocation) -> tuple[str, Secret] | None:
    if location.user is None:
        return None
    if location.password_file is None:
        return location.user, location.password or Secret("")
    try:
        return location.user, Secret(location.password_file.read_text().rstrip("\n"))
    except OSError as error:
        raise InvalidArgumentError(f"the password_file of {location} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} of {str(location.password_file)!r} is not UTF-8"
    # Raised outside the handler: the codec's error contains the whole file.
    raise InvalidArgumentError(f"the password_file of {location} cannot be read: {wrong}")
