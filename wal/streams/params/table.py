"""GlobalParamsTable: the parameters of a process, text by name.

Owns the parameters and the order of their names. Names are case-insensitive: `Etcd.Address` and `etcd.address` are one parameter. Every
call is synchronous and thread-safe; only `load_yaml` blocks, while it reads its file.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort

from wal.errors import KeyNotExistError


class GlobalParamsTable:
    """A sorted map from names to text. All names are lower-cased, and names are compared by code point."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self._names: list[str] = []
        """The names, ascending."""

    def save(self, key: str, value: str) -> None:
        """Sets a parameter, and replaces an earlier value."""
        if not isinstance(value, str):
            raise TypeError(f"parameter {key!r} is {value!r}: a parameter is a str, so write it as text")
        name = _name(key)
        with self._lock:
            self._set(name, value)

    def load(self, key: str) -> str:
        """Returns the value of a parameter; raises KeyNotExistError if it is not set."""
        name = _name(key)
        try:
            return self._values[name]
        except KeyError:
            raise KeyNotExistError(name, f"no parameter {name!r}: save it, or load a YAML file that has it") from None

    def load_range(self, key: str, end_key: str, limit: int = 0) -> tuple[list[str], list[str]]:
        """Returns the names from `key` to below `end_key`, ascending, and their values.

        At most `limit` of them are returned; 0 or less means all.
        """
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise TypeError(f"limit must be an int, not {limit!r}")
        first, end = _name(key), _name(end_key)
        with self._lock:
            start, stop = bisect_left(self._names, first), bisect_left(self._names, end)
            names = self._names[start : min(stop, start + limit) if limit > 0 else stop]
            return names, [self._values[name] for name in names]

    def remove(self, key: str) -> None:
        """Removes a parameter; does nothing if it is not set."""
        name = _name(key)
        with self._lock:
            if self._values.pop(name, None) is not None:
                del self._names[bisect_left(self._names, name)]

    def load_yaml(self, file_path: str | os.PathLike[str]) -> None:
        """Sets all parameters of a YAML file, and replaces earlier values. If it raises, no parameter has changed.

        Nested maps are flattened: `etcd: {port: 12379}` sets `etcd.port`. A scalar keeps its written text without quotes: `0x10` stays
        `0x10`. A missing value is an empty text, and the items of a list are joined by `,`.

        Raises InvalidArgumentError, with the line where there is one, for a file that is missing, is not YAML, sets a parameter twice, or
        holds anything but parameters. The same error limits a file to 1 MiB, 65,536 parameters, 16 MiB of flattened names and values,
        1,048,576 names, values and items, and 100 maps around a parameter. (Aliases make large parameters of a short text.)
        """
        from wal.streams.params.yaml_file import parameters_in  # PyYAML is an extra

        parameters = parameters_in(os.fspath(file_path))
        with self._lock:
            for name, value in parameters.items():
                self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        if name not in self._values:
            insort(self._names, name)
        self._values[name] = value


def _name(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the name of a parameter is a str, not {type(key).__name__}: {key!r}")
    return key.lower()
