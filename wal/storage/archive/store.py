"""Store: the objects of a log's backups, by name: in a directory, or in an object store of obstore (s3://, gs://, …).

An object appears whole or not at all, and is never changed, but for hints that `replace` stores. `create` stores an object only if its name
is new, in one step: if two processes write the same backup, one gets an error. Everything here blocks, so it runs in threads.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from wal.errors import CorruptionError, InvalidArgumentError, NoSpaceError, StorageError
from wal.runtime.descriptors import open_file
from wal.runtime.installation import Needed
from wal.runtime.system import sync_file, sync_path
from wal.storage.archive.manifest import PREFIX

_TEMPORARY: Final = ".tmp-"


class ObjectExistsError(Exception):
    """An object of the name given to `create` already exists."""


class BackupStore(abc.ABC):
    """Objects by name. Missing ones raise FileNotFoundError, other failures StorageError."""

    place: str

    @abc.abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Stores an object durably. Raises ObjectExistsError if its name exists."""

    @abc.abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Stores an object durably, in place of one of this name."""

    @abc.abstractmethod
    def get(self, name: str, bytes_max: int) -> bytes:
        """Returns the content of an object. Raises CorruptionError if it has more than `bytes_max`, without reading it."""

    @abc.abstractmethod
    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Returns the bytes [start, end) of an object; fewer, or none, where it ends before."""

    @abc.abstractmethod
    def names(self, prefix: str, *, after: str = "") -> dict[str, float]:
        """Returns the names with this prefix, and the time at which each object was stored (Unix time); only names above `after`."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Deletes an object, if it exists."""

    def check(self) -> None:
        """Raises InvalidArgumentError unless `create` rejects an existing object. It stores an object, and removes it again."""
        name = f"{PREFIX}probe-{secrets.token_hex(8)}"
        try:
            for _ in range(2):
                self.create(name, b"probe")
        except ObjectExistsError:
            return
        finally:
            with contextlib.suppress(StorageError):  # the user that makes backups may lack the right to delete: nothing reads this object
                self.delete(name)
        raise InvalidArgumentError(
            f"{self.place} has put an object twice that may be put only if it is not there, so that two processes would write one backup: "
            "it ignores conditional puts (If-None-Match); use a version of its server that has them, or name a directory"
        )


class DirectoryStore(BackupStore):
    """The objects are files below a directory, which the first one creates. Only their owner can read them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.place = str(directory)
        if directory.exists() and not directory.is_dir():
            raise InvalidArgumentError(f"{directory} is a file: name a directory for the backups")

    def create(self, name: str, data: bytes) -> None:
        self._write(name, data, os.link)

    def replace(self, name: str, data: bytes) -> None:
        self._write(name, data, os.replace)

    def _write(self, name: str, data: bytes, move: Callable[[Path, Path], None]) -> None:
        path = self._directory / name
        temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
        with _failures(f"{path} cannot be written"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    sync_file(fd)
                move(temporary, path)
            except FileExistsError:
                raise ObjectExistsError(name) from None
            finally:
                temporary.unlink(missing_ok=True)
            sync_path(path.parent)

    def get(self, name: str, bytes_max: int) -> bytes:
        with _failures(f"{self._directory / name} cannot be read", may_be_missing=True), (self._directory / name).open("rb") as file:
            _check_size(self, name, os.fstat(file.fileno()).st_size, bytes_max)
            return file.read(bytes_max)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        with _failures(f"{self._directory / name} cannot be read", may_be_missing=True), (self._directory / name).open("rb") as file:
            return os.pread(file.fileno(), end - start, start)

    def names(self, prefix: str, *, after: str = "") -> dict[str, float]:
        folder = self._directory / prefix
        with _failures(f"{folder} cannot be listed"):
            if not folder.is_dir():
                return {}
            names = {}
            for entry in os.scandir(folder):
                if not entry.name.startswith(_TEMPORARY) and prefix + entry.name > after:
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile, a probe for example
                        names[prefix + entry.name] = entry.stat().st_mtime
            return names

    def delete(self, name: str) -> None:
        with _failures(f"{self._directory / name} cannot be removed"):
            (self._directory / name).unlink(missing_ok=True)


class ObjectStore(BackupStore):
    """The objects are in a store of obstore."""

    def __init__(self, store: Any, place: str) -> None:
        self._store = store
        self.place = place
        self._obstore = _obstore()

    def create(self, name: str, data: bytes) -> None:
        with _failures(f"{self.place}/{name} cannot be written"):
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                raise ObjectExistsError(name) from None

    def replace(self, name: str, data: bytes) -> None:
        with _failures(f"{self.place}/{name} cannot be written"):
            self._obstore.put(self._store, name, data)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        with _failures(f"{self.place}/{name} cannot be read", may_be_missing=True):
            try:
                return bytes(self._obstore.get_range(self._store, name, start=start, end=end))
            except self._obstore.exceptions.GenericError:  # also for a range that begins after the end of an object that was cut
                if self._obstore.head(self._store, name)["size"] > start:
                    raise
                return b""

    def get(self, name: str, bytes_max: int) -> bytes:
        with _failures(f"{self.place}/{name} cannot be read", may_be_missing=True):
            result = self._obstore.get(self._store, name)
            _check_size(self, name, result.meta["size"], bytes_max)
            return bytes(result.bytes())

    def names(self, prefix: str, *, after: str = "") -> dict[str, float]:
        with _failures(f"{self.place}/{prefix} cannot be listed"):
            pages = list(self._obstore.list(self._store, prefix.rstrip("/"), offset=after or None, chunk_size=1000))
            return {entry["path"]: entry["last_modified"].timestamp() for page in pages for entry in page}

    def delete(self, name: str) -> None:
        with _failures(f"{self.place}/{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)


def open_store(target: str | os.PathLike[str]) -> BackupStore:
    """Returns the store at a directory or a URL (`s3://bucket/path`, `gs://bucket/path`); credentials come from the environment.

    Raises InvalidArgumentError for a file or an unknown URL, ImportError without the extra `backup` for a URL.
    """
    text = os.fspath(target)
    if not text:
        raise InvalidArgumentError("the target of a backup is empty: name a directory, or s3://BUCKET/PATH")
    if "://" not in text:
        return DirectoryStore(Path(text).absolute())
    obstore = _obstore()
    try:
        return ObjectStore(obstore.store.from_url(text, client_options=_client_options(text)), text.rstrip("/"))
    except (ValueError, obstore.exceptions.BaseError) as error:
        raise InvalidArgumentError(f"the target {text!r} of a backup is not known: {str(error).splitlines()[0]}") from error


def _client_options(url: str) -> dict[str, str]:
    """Returns obstore's options: no proxy, unless a variable of the store names one, as `AWS_PROXY_URL` does for s3://.

    Requests carry credentials, and `http_proxy` and similar variables may be meant for other programs. These options replace obstore's
    options from variables, so they contain all of them.
    """
    prefix = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_"}.get(url.partition("://")[0], "AZURE_")
    options = {name: os.environ[variable] for name in _CLIENT_OPTIONS if (variable := prefix + name.upper()) in os.environ}
    return options if "proxy_url" in options else options | _NO_PROXY


_CLIENT_OPTIONS: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "timeout",
    "user_agent",
)
_NO_PROXY: Final = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "*,0.0.0.0/0,::/0"}
"""A proxy that is excluded for every name and address: without one obstore takes the proxy of the environment."""


def _obstore() -> Any:
    with Needed("a backup in an object store needs", "backup"):
        import obstore
        import obstore.exceptions
        import obstore.store
    return obstore


@contextlib.contextmanager
def _failures(what: str, *, may_be_missing: bool = False) -> Iterator[None]:
    """Turns failures of the store into StorageError, and a lack of room into NoSpaceError."""
    try:
        yield
    except ObjectExistsError:
        raise
    except OSError as error:
        if may_be_missing and isinstance(error, FileNotFoundError):
            raise
        kind = NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(f"{what}: {error.strerror or _reason(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith("obstore"):
            raise
        raise StorageError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns the first line of a store's error, and after it the code and the message of an answer in XML, which has several lines."""
    head, _, answer = str(error).partition("\n\nDebug source")[0].partition("<")
    reasons = re.findall("<(?:Code|Message)>([^<]*)<", f"<{answer}")
    return head.splitlines()[0] + ": ".join(reasons)


def _check_size(store: BackupStore, name: str, size: int, bytes_max: int) -> None:
    """Raises CorruptionError for an object that is larger than its maximum."""
    if size > bytes_max:
        path = f"{store.place}/{name}"
        raise CorruptionError(f"{path} is damaged: it has {size} bytes", path=path, offset=0, expected=f"at most {bytes_max} bytes")


def age_s(put_at_s: float) -> float:
    """Returns the seconds since this time."""
    return time.time() - put_at_s
