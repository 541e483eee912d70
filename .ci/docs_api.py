"""The API reference of the site: what griffe finds in the sources, made ready for readers.

Fields of a `msgspec.Struct` become the signature of its constructor, and constants that are defaults are shown by their value. A
constructor that takes internal classes is left out, since callers get the object from a call; so are attributes and keywords that exist
only to explain a wrong call. Public names, errors and pages of docs/ that a docstring mentions become links.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import griffe

PUBLIC: Final = {
    "wal": (
        *("wal", "wal.asgi", "wal.bridge", "wal.errors", "wal.timestamp", "wal.spark", "wal.tracing", "wal.operate.metrics"),
        *(
            "wal.operate.status",
            "wal.storage.kv.etcd",
            "wal.streams.flowgraph",
            "wal.streams.flowgraph.nodes",
            "wal.streams.msgstream",
            "wal.streams.params",
        ),
        *("wal.streams.rocksmq", "wal.streams.watchdog"),
    ),
    "actors": ("actors",),
    "broadcaster": ("broadcaster",),
}
"""The public modules of each package; a name links to the first module that has it."""
CONSTRUCTED: Final = ("ChannelService", "Collector", "IdAllocator", "MsgStream", "TimestampOracle", "TtMsgStream")
"""Classes that callers construct, although a parameter has a type without a public name."""
EXPORTED_BY_WAL: Final = ("BroadcastAppendResult", "BroadcastMessage", "BroadcastState", "BroadcastTask")
"""Names of `broadcaster` that `wal` exports too, where the reference has them."""
_CODE: Final = re.compile(
    r"(?P<fence>```.*?```|^ {4}.*?$)|(?P<code>`[^`\n]+`)|(?P<page>\bdocs/[\w/-]+\.md)|(?P<word>\b[A-Z][a-z]+[A-Z]\w*\b)",
    re.DOTALL | re.MULTILINE,
)
_CALL: Final = re.compile(r"(?:await )?(?:(?P<owner>\w+)\.)?(?P<name>[A-Za-z]\w*)(?:\(.*\))?")
_OWNERS: Final = {
    "log": "WALAccesser", "scanner": "Scanner", "txn": "Txn", "delivery": "Delivery", "consumer": "Consumer", "schedule": "Schedule"
}  # fmt: skip
"""The class of an object that a docstring calls by this name."""


class ForReaders(griffe.Extension):
    """Changes each package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        for one in _objects(pkg):
            if isinstance(one, griffe.Function):
                one.parameters = griffe.Parameters(*(each for each in one.parameters if str(each.annotation) != "Never"))
            elif isinstance(one, griffe.Class):
                _drop_explanations(one)
                _add_signature(one)
                _add_values(one)
        names = _public_names(pkg)
        for one in _objects(pkg):
            if isinstance(one, griffe.Class) and one.name not in CONSTRUCTED and _is_internal(one.members.get("__init__"), pkg, names):
                _add_fields(one)
                del one.members["__init__"]
            if isinstance(one, griffe.Function):
                for parameter in one.parameters:
                    parameter.default = _value(parameter.default, one.module, pkg)
            if one.docstring is not None:
                one.docstring.value = _linked(one.docstring.value, one, names)


def _value(default: str | griffe.Expr | None, module: griffe.Module, pkg: griffe.Module) -> str | griffe.Expr | None:
    """Returns the number or text of a default that is the name of a constant; any other default as it is."""
    constant = module.members.get(str(default))
    if constant is not None and constant.is_alias and constant.target_path.startswith(f"{pkg.path}."):
        try:
            constant = pkg[constant.target_path.partition(".")[2]]
        except KeyError:
            return default
    value = str(constant.value) if isinstance(constant, griffe.Attribute) else ""
    return value if re.fullmatch(r"[\d._]+|'.*'|\".*\"", value) else default


def _objects(owner: griffe.Object) -> Iterator[griffe.Object]:
    for member in list(owner.members.values()):
        if not member.is_alias:
            yield member
            yield from _objects(member)
            if isinstance(member, griffe.Function):
                yield from member.overloads or ()


def _drop_explanations(struct: griffe.Class) -> None:
    for name, member in list(struct.members.items()):
        if member.is_attribute and str(member.value).startswith("Instead("):
            del struct.members[name]


def _add_signature(struct: griffe.Class) -> None:
    """Adds the constructor that msgspec makes: the fields of the bases first, those with a default after those without one."""
    if "__init__" in struct.members or not _is_struct(struct):
        return
    positional, keywords = _fields(struct)
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for kind, fields in ((griffe.ParameterKind.positional_or_keyword, positional), (griffe.ParameterKind.keyword_only, keywords)):
        parameters += [griffe.Parameter(one.name, annotation=one.annotation, default=one.value, kind=kind) for one in fields]
    struct.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=struct))


def _add_values(enumeration: griffe.Class) -> None:
    """Adds the names and numbers of an enumeration to its docstring."""
    if not any(str(base).rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum") for base in enumeration.bases):
        return
    values = [one for one in enumeration.members.values() if one.is_attribute and one.value is not None and not one.name.startswith("_")]
    _append(enumeration, "Values: " + ", ".join(f"`{one.name}` {one.value}" for one in values) + ".")


def _add_fields(struct: griffe.Class) -> None:
    """Adds the public fields of a struct whose constructor is internal to its docstring."""
    fields = [one for one in itertools.chain(*_fields(struct)) if not one.name.startswith("_")]
    if fields:
        _append(struct, "Fields: " + ", ".join(f"`{one.name}: {one.annotation}`" for one in fields) + ".")


def _append(one: griffe.Class, sentence: str) -> None:
    described = "" if one.docstring is None else one.docstring.value
    one.docstring = griffe.Docstring(f"{described}\n\n{sentence}", parent=one)


def _is_internal(constructor: griffe.Object | griffe.Alias | None, pkg: griffe.Module, names: dict[str, str]) -> bool:
    """Returns whether only the package itself calls this constructor: it takes a private field, or an internal class."""
    for parameter in constructor.parameters if isinstance(constructor, griffe.Function) else ():
        if parameter.name.startswith("_"):
            return True
        for part in parameter.annotation.iterate() if isinstance(parameter.annotation, griffe.Expr) else ():
            path = part.canonical_path if isinstance(part, griffe.ExprName) else ""
            if path.startswith(f"{pkg.path}.") and part.name not in names and _class_at(pkg, path):
                return True
    return False


def _class_at(pkg: griffe.Module, path: str) -> bool:
    try:
        return bool(pkg[path.partition(".")[2]].is_class)
    except (KeyError, griffe.AliasResolutionError):
        return False


def _is_struct(one: griffe.Class) -> bool:
    bases = [one.module.members.get(str(base)) for base in one.bases]
    return "msgspec.Struct" in map(str, one.bases) or any(isinstance(base, griffe.Class) and _is_struct(base) for base in bases)


def _fields(struct: griffe.Class) -> tuple[list[griffe.Attribute], list[griffe.Attribute]]:
    """Returns the fields that a constructor takes by position, and those that it takes by keyword."""
    positional: list[griffe.Attribute] = []
    keywords: list[griffe.Attribute] = []
    for base in struct.bases:
        if isinstance(other := struct.module.members.get(str(base)), griffe.Class):
            inherited, named = _fields(other)
            positional, keywords = positional + inherited, keywords + named
    own = [
        one for one in struct.members.values() if one.is_attribute and one.annotation is not None and "ClassVar" not in str(one.annotation)
    ]
    own = [one for one in own if not one.has_labels("property")]
    if str(struct.keywords.get("kw_only")) == "True":
        return positional, keywords + own
    return positional + own, keywords


def _public_names(pkg: griffe.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for module in PUBLIC[pkg.path]:
        for name in (pkg if module == pkg.path else pkg[module.partition(".")[2]]).exports or ():
            if not str(name).startswith("_"):
                names.setdefault(str(name), f"{'wal' if name in EXPORTED_BY_WAL else module}.{name}")
    return names


def _linked(text: str, one: griffe.Object, names: dict[str, str]) -> str:
    owner = one if one.is_class else one.parent

    def link(found: re.Match[str]) -> str:
        if found["fence"]:
            return found[0]
        if found["page"]:
            return f"[{found['page']}](site:{found['page']})"
        if found["word"]:
            target = names.get(found["word"])
            return f"[{found[0]}][{target}]" if target and target != one.path and found["word"] != one.name else found[0]
        call = _CALL.fullmatch(found["code"].strip("`"))
        if call is None or call["name"] == one.name:
            return found[0]
        name = call["name"]
        if call["owner"] is None and owner is not None and owner.is_class and owner.name in names and _is_public_member(owner, name):
            return f"[{found[0]}][{names[owner.name]}.{name}]"
        if call["owner"] in _OWNERS and (holder := names.get(_OWNERS[call["owner"]])):
            return f"[{found[0]}][{holder}.{name}]"
        return f"[{found[0]}][{names[name]}]" if call["owner"] is None and name in names else found[0]

    return _CODE.sub(link, text)


def _is_public_member(owner: griffe.Object, name: str) -> bool:
    """Returns whether the reference has an entry of its own for this member: a public one with a docstring."""
    return not name.startswith("_") and name in owner.members and owner.members[name].docstring is not None
