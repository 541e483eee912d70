"""Reads the parameters in a YAML file; nested maps become dotted names.

Scalars keep the text that is written, as with PyYAML's BaseLoader: versions of YAML differ in which texts are numbers or dates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wal.errors import InvalidArgumentError
from wal.installation import install_hint

try:
    import yaml
except ImportError as _missing:
    raise ImportError(f"reading YAML needs PyYAML: {install_hint('params')}", name=_missing.name) from _missing

__all__ = ["parameters_in"]

FILE_BYTES_MAX: Final = 1 << 20
"""The largest file that is read. PyYAML takes about 10 s for it."""
PARAMETERS_MAX: Final = 65_536
"""The most parameters of a file: aliases can make many of a short text."""


def parameters_in(path: str) -> dict[str, str]:
    """Returns the parameters of a file by lower-case name. Raises InvalidArgumentError for a file that holds anything else."""
    text = _content(path)
    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise InvalidArgumentError(f"{path!r} is not YAML: {error}") from error
    except RecursionError:
        raise InvalidArgumentError(
            f"{path!r} nests maps and lists too deeply: write flat names, such as a.b.c"
        ) from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise _refusal(path, root, "it is not a map of parameters: write `name: value`, one a line")
    found: dict[str, str] = {}
    for name, value, node in _flattened(path, root, "", ()):
        if name in found:
            raise _refusal(
                path, node, f"parameter {name!r} is set twice (names are case-insensitive): remove one of them"
            )
        if len(found) == PARAMETERS_MAX:
            raise _refusal(path, node, f"it has more than {PARAMETERS_MAX} parameters: split it")
        found[name] = value
    return found


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgumentError(f"the file of parameters {path!r} cannot be read: {error.strerror}") from error
    if len(text) > FILE_BYTES_MAX:
        raise InvalidArgumentError(f"the file of parameters {path!r} has more than {FILE_BYTES_MAX} bytes: split it")
    return text


def _flattened(
    path: str, node: yaml.MappingNode, prefix: str, above: tuple[yaml.Node, ...]
) -> Iterator[tuple[str, str, yaml.Node]]:
    """Yields the name and the value of each scalar and list, and the node that names it."""
    above = (*above, node)
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in ("", "<<"):
            raise _refusal(
                path, key, "a name is a text that is not empty, and maps are not merged by <<: write each name out"
            )
        name = prefix + key.value.lower()
        if isinstance(value, yaml.MappingNode):
            if value in above:
                raise _refusal(path, value, f"{name!r} contains itself by an alias")
            yield from _flattened(path, value, name + ".", above)
        elif isinstance(value, yaml.SequenceNode):
            for item in value.value:
                if not isinstance(item, yaml.ScalarNode):
                    raise _refusal(
                        path, item, f"the list {name!r} has an item that is not a scalar: give it a name of its own"
                    )
            yield name, ",".join(item.value for item in value.value), key
        else:
            yield name, value.value, key


def _refusal(path: str, node: yaml.Node, why: str) -> InvalidArgumentError:
    mark = node.start_mark
    return InvalidArgumentError(f"{path!r}, line {mark.line + 1}, column {mark.column + 1}: {why}")
