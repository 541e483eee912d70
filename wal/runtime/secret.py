"""Secret: a text that is used and never shown, and the form in which a URL with a secret is shown.

Owns the text that reprs, errors and log lines show instead of a password or a token. Code that needs the text itself calls `reveal()`, so a
search for that name finds every line that can leak one.
"""

from __future__ import annotations

import hmac
import re
from typing import Final, NoReturn

MASK: Final = "***"
_NAME: Final = re.compile(r"[^/?&=:@,]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_NUMBER: Final = re.compile(r"[-+]?([0-9.]+|nan|inf)")
_IPV6: Final = re.compile(r"\[?[0-9a-fA-F:.]+\]?")
_OPTIONS: Final = re.compile(r"([?&;#])")
_FILES: Final = frozenset(("ca", "certificate", "key", "password_file"))
"""Options of a URL that name files."""


class Secret:
    """A text that is never shown: `repr`, `str` and formatting return `***`, and `reveal()` returns the text.

    Two secrets are equal if their texts are, compared in constant time; a secret never equals a str. A secret is immutable, hashable, and
    false if it is empty. It can be copied, and pickled for a process that needs it. `mask` is shown instead, for example a URL without its
    password.
    """

    __slots__ = ("_mask", "_text")

    _mask: str
    _text: str

    def __init__(self, text: str, *, mask: str = MASK) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a secret is a str, not {type(text).__name__}")
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_mask", mask)

    @classmethod
    def of(cls, text: str | Secret) -> Secret:
        """Returns the secret itself, or a new one of this text."""
        return text if isinstance(text, Secret) else cls(text)

    @classmethod
    def of_url(cls, url: str | Secret) -> Secret:
        """Returns a secret of a URL that masks only the password; a secret is returned unchanged."""
        return url if isinstance(url, Secret) else cls(url, mask=shown(url))

    def reveal(self) -> str:
        """Returns the text. Do not put it into an error, a log line or a name."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({self._mask!r})"

    def __str__(self) -> str:
        return self._mask

    def __format__(self, form: str) -> str:
        return format(self._mask, form)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(errors="surrogatepass"), other._text.encode(errors="surrogatepass"))

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret cannot be changed: make another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret cannot be changed: make another one")

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._text, self._mask)


def shown(url: str) -> str:
    """Returns a URL, or a text passed as one, with `***` for each part that may be a password or a token.

    Three parts are masked: everything before the last `@` except the name of a user, so that a password whose `/`, `?` or `@` was not
    percent-encoded is not shown in part; the value of each option that is neither a file's name nor a number of seconds; and a port that is
    not a number. A text without any of these, such as a path, is returned unchanged.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    userinfo, at, rest = rest.rpartition("@")
    if at:
        user, colon, _ = userinfo.partition(":")
        is_name = _NAME.fullmatch(user) is not None
        if not separator and not (colon and is_name):
            return url  # a path with an @ in it
        if colon:
            userinfo = f"{user if is_name else ''}:{MASK}"
        elif not (scheme.startswith("etcd") and is_name):
            userinfo = MASK  # it may be a token for servers other than etcd
    rest, *options = _OPTIONS.split(rest)
    if separator:
        hosts, slash, path = rest.partition("/")
        rest = ",".join(map(_shown_host, hosts.split(","))) + slash + path
    options[1::2] = map(_shown_option, options[1::2])
    return "".join((scheme, separator, userinfo, at, rest, *options))


def _shown_host(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or _PORT.fullmatch(port) or _IPV6.fullmatch(host):
        return host
    return f"{name.partition(':')[0]}:{MASK}"


def _shown_option(option: str) -> str:
    name, _, value = option.partition("=")
    if name in _FILES or not option or (name == "timeout_s" and _NUMBER.fullmatch(value)):
        return option
    return f"{name}={MASK}" if _NAME.fullmatch(name) and value else MASK


def _restored(text: str, mask: str) -> Secret:
    return Secret(text, mask=mask)
