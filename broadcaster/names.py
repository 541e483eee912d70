"""Names: the vchannels that a broadcast goes to, looked through once for all broadcasts that go to the same ones.

Owns what follows from a tuple of names alone; the last few tuples are remembered, since most broadcasts go to the same thousand
vchannels. Never judges a name: that is the log's. Pure.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

__all__ = ["Names", "names_of"]


class Names(msgspec.Struct, frozen=True, gc=False):
    """`vchannels`: each once, in their order. `letters` and `stored_bytes` (UTF-8): of all of them together."""

    vchannels: tuple[str, ...]
    letters: int
    stored_bytes: int


def names_of(vchannels: tuple[str, ...]) -> Names:
    """What is known of these names. One that is no str is a TypeError."""
    try:
        return _names_of(vchannels)
    except TypeError:
        _check(vchannels)  # says which; the cache says of one that has no hash only that
        raise


@lru_cache(maxsize=16)
def _names_of(vchannels: tuple[str, ...]) -> Names:
    _check(vchannels)
    joined = "".join(vchannels)
    distinct = tuple(dict.fromkeys(vchannels))
    if len(distinct) != len(vchannels):
        joined = "".join(distinct)
    # A lone surrogate is refused with its name later on; here it is counted.
    return Names(distinct, len(joined), len(joined.encode(errors="surrogatepass")))


def _check(vchannels: tuple[str, ...]) -> None:
    if set(map(type, vchannels)) != {str}:  # asked once for all, since there may be thousands
        for name in vchannels:
            if not isinstance(name, str):
                raise TypeError(f"a vchannel is named by a str, not {type(name).__name__}")
