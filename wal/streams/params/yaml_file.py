"""Reads the parameters in a YAML file; nested maps become dotted names.

Scalars keep the text that is written, as with PyYAML's BaseLoader: versions of YAML differ in which texts are numbers or dates.
"""

from __future__ import annotations

from typing import Final

from wal.errors import InvalidArgumentError
from wal.runtime.installation import Needed

with Needed("reading YAML needs", "params"):
    import yaml


FILE_BYTES_MAX: Final = 1 << 20
"""The largest file that is read. PyYAML needs about 10 s for a file of this size."""
PARAMETERS_MAX: Final = 65_536
"""The maximum number of parameters in a file."""
VISITS_MAX: Final = FILE_BYTES_MAX
"""The maximum number of visited names, values and items. Each takes a byte of the file, so only a file with aliases has more."""
TEXT_BYTES_MAX: Final = 16 << 20
"""The maximum total size of all flattened names and all values, as UTF-8. A name includes the prefixes of the maps around it."""
DEPTH_MAX: Final = 100
"""The maximum number of maps around a parameter, including maps of aliases."""
SHOWN_CHARACTERS_MAX: Final = 120
"""The maximum length of a name in an error."""


def parameters_in(path: str) -> dict[str, str]:
    """Returns the parameters of a file by lower-case name. Raises InvalidArgumentError for other content, and above the limits."""
    text = _content(path)
    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise InvalidArgumentError(f"{path!r} is not YAML: {error}") from error
    except RecursionError:
        raise InvalidArgumentError(f"{path!r} nests maps and lists too deeply: write flat names, such as a.b.c") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise _refusal(path, root, "it is not a map of parameters: write `name: value`, one a line")
    return _Flattening(path).parameters_of(root)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL, or a lone surrogate
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError(f"the file of parameters {path!r} cannot be read: {reason}") from error
    if len(text) > FILE_BYTES_MAX:
        raise InvalidArgumentError(f"the file of parameters {path!r} has more than {FILE_BYTES_MAX} bytes: split it")
    return text


class _Flattening:
    """Flattens the tree of one file. Aliases make a large tree of a short text, so each step is counted before it runs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parameters: dict[str, str] = {}
        self._visits = 0
        self._text_bytes = 0

    def parameters_of(self, root: yaml.MappingNode) -> dict[str, str]:
        """Returns the value of each scalar and list below `root`, by its flattened name."""
        self._flatten(root, "", (root,))
        return self._parameters

    def _flatten(self, node: yaml.MappingNode, prefix: str, above: tuple[yaml.Node, ...]) -> None:
        for key, value in node.value:
            self._visit(key)
            if not isinstance(key, yaml.ScalarNode) or key.value in ("", "<<"):
                raise _refusal(self._path, key, "a name is a text that is not empty, and maps are not merged by <<: write each name out")
            self._claim(key, len(prefix.encode()) + len(key.value.encode()))
            name = prefix + key.value.lower()
            if isinstance(value, yaml.MappingNode):
                if value in above:
                    raise _refusal(self._path, value, f"{_shown(name)} contains itself by an alias")
                if len(above) == DEPTH_MAX:
                    raise _refusal(
                        self._path, value, f"{_shown(name)} has more than {DEPTH_MAX} maps around it: write flat names, such as a.b.c"
                    )
                self._flatten(value, name + ".", (*above, value))
            else:
                self._set(key, name, self._text_of(name, value))

    def _text_of(self, name: str, value: yaml.Node) -> str:
        if not isinstance(value, yaml.SequenceNode):
            self._visit(value)
            self._claim(value, len(value.value.encode()))
            return str(value.value)
        for item in value.value:
            if not isinstance(item, yaml.ScalarNode):
                raise _refusal(self._path, item, f"the list {_shown(name)} has an item that is not a scalar: give it a name of its own")
            self._visit(item)
            self._claim(item, len(item.value.encode()) + 1)
        return ",".join(item.value for item in value.value)

    def _set(self, key: yaml.Node, name: str, value: str) -> None:
        if name in self._parameters:
            raise _refusal(self._path, key, f"parameter {_shown(name)} is set twice (names are case-insensitive): remove one of them")
        if len(self._parameters) == PARAMETERS_MAX:
            raise _refusal(self._path, key, f"it has more than {PARAMETERS_MAX} parameters: split it")
        self._parameters[name] = value

    def _visit(self, node: yaml.Node) -> None:
        self._visits += 1
        if self._visits > VISITS_MAX:
            raise _refusal(
                self._path, node, f"its aliases make more than {VISITS_MAX} names, values and items: write out what is meant, or split it"
            )

    def _claim(self, node: yaml.Node, text_bytes: int) -> None:
        self._text_bytes += text_bytes
        if self._text_bytes > TEXT_BYTES_MAX:
            raise _refusal(
                self._path,
                node,
                f"its names and values, with the prefixes of nested maps, have {self._text_bytes} bytes or more, but at most"
                f" {TEXT_BYTES_MAX} are read: shorten the names, use fewer aliases, or split it",
            )


def _shown(name: str) -> str:
    return repr(name if len(name) <= SHOWN_CHARACTERS_MAX else name[:SHOWN_CHARACTERS_MAX] + "…")


def _refusal(path: str, node: yaml.Node, why: str) -> InvalidArgumentError:
    mark = node.start_mark
    return InvalidArgumentError(f"{path!r}, line {mark.line + 1}, column {mark.column + 1}: {why}")
