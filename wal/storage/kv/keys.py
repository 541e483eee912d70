"""Checks of keys, values and prefixes, and the order of keys.

Owns: the checks that every KV makes in the same words, and `prefix_end`, on which prefix scans depend. Pure functions. Keys are ordered by
code point, which is the order of their UTF-8 bytes, so memory, sqlite and etcd agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from wal.errors import InvalidArgumentError, KeyNotExistError

_CODE_POINT_MAX: Final = 0x10FFFF
_SURROGATE_FIRST: Final = 0xD800
_SURROGATE_LAST: Final = 0xDFFF


def check_key(key: object) -> str:
    """Returns the key if it is valid: a non-empty `str` without NUL that UTF-8 can carry."""
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    if not key:
        raise InvalidArgumentError("the key '' is empty: a key has at least 1 character")
    return _check_text("key", key, nul=False)


def check_value(key: str, value: object) -> str:
    """Returns the value for `key` if it is valid: a `str` (it may be empty) that UTF-8 can carry."""
    if not isinstance(value, str):
        raise TypeError(f"the value for key {key!r} is a str, not {type(value).__name__}")
    return _check_text(f"value for key {key!r}", value, nul=True)


def check_prefix(prefix: object) -> str:
    """Returns the prefix if it is valid: like a key, but it may be empty (every key starts with it)."""
    if not isinstance(prefix, str):
        raise TypeError(f"a prefix is a str, not {type(prefix).__name__}")
    return _check_text("prefix", prefix, nul=False)


def check_root_path(root_path: object) -> str:
    """Returns the text before each key of a KV with this root path: `"root/"`, or `""` for no root path.

    The text always ends with a `/`, so that the keys under `a` are never confused with those under `ab`.
    """
    if not isinstance(root_path, str):
        raise TypeError(f"a root path is a str, not {type(root_path).__name__}")
    if not root_path:
        return ""
    if not root_path.strip("/"):
        raise InvalidArgumentError(f"the root path {root_path!r} names nothing: leave it '' or name one, 'by-dev'")
    return _check_text("root path", root_path, nul=False).rstrip("/") + "/"


def check_keys(what: str, keys: object) -> list[str]:
    """Returns the keys of one operation, each checked and none repeated. `what` names the argument in the error."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise TypeError(f"{what} are a sequence of str, not {type(keys).__name__}")
    checked = [check_key(key) for key in keys]
    if len(set(checked)) != len(checked):
        twice = next(key for index, key in enumerate(checked) if key in checked[:index])
        raise InvalidArgumentError(f"the key {twice!r} is given twice in {what}: give it once")
    return checked


def check_saves(saves: object) -> dict[str, str]:
    """Returns the saves of one operation, each key and value checked, in the order of the mapping."""
    if not isinstance(saves, Mapping):
        raise TypeError(f"saves are a mapping of str to str, not {type(saves).__name__}")
    return {check_key(key): check_value(key, value) for key, value in saves.items()}


def missing_keys(keys: Sequence[str]) -> KeyNotExistError:
    """Returns one error for all keys that should exist and do not; its `.key` is the first of them."""
    if len(keys) == 1:
        return KeyNotExistError(keys[0])
    listed = ", ".join(repr(key) for key in keys)
    return KeyNotExistError(keys[0], f"no value on keys {listed}: save them first, or ask with load_with_prefix()")


def prefix_end(prefix: str) -> str | None:
    """Returns the smallest text above every text that starts with `prefix`, or None when there is none.

    So `prefix <= key < prefix_end(prefix)` is exactly `key.startswith(prefix)`, and an ordered index can answer it.
    """
    for last in range(len(prefix) - 1, -1, -1):
        code_point = ord(prefix[last])
        if code_point < _CODE_POINT_MAX:
            code_point += 1
            if _SURROGATE_FIRST <= code_point <= _SURROGATE_LAST:
                code_point = _SURROGATE_LAST + 1  # UTF-8 has no surrogates
            return prefix[:last] + chr(code_point)
    return None


def _check_text(what: str, text: str, *, nul: bool) -> str:
    if not nul and "\0" in text:
        raise InvalidArgumentError(f"the {what} {text!r} holds a NUL character: leave it out")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"the {what} holds {text[error.start]!r}, which UTF-8 cannot carry: encode binary data as text first"
            ) from None
    return text
