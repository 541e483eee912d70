"""GlobalParamsTable: a sorted map with case-insensitive names, and its YAML files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError, KeyNotExistError
from wal.streams.params import GlobalParamsTable

NAMES = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="._"), min_size=1, max_size=4)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), NAMES, st.text(max_size=3)),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("range"), NAMES, NAMES, st.integers(-1, 4)),
    ),
    max_size=40,
)
PLAIN = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=4)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x85"), max_size=5)
"""Without the one character that PyYAML writes unescaped as a line break and then reads as a space."""
TREES = st.recursive(st.one_of(TEXTS, st.lists(PLAIN, max_size=3)), lambda inner: st.dictionaries(PLAIN, inner, max_size=4), max_leaves=12)


def all_of(table: GlobalParamsTable) -> dict[str, str]:
    names, values = table.load_range("", "\U0010ffff")
    return dict(zip(names, values, strict=True))


def written(folder: Path, text: str) -> Path:
    path = folder / "params.yaml"
    path.write_text(text)
    return path


@given(CALLS)
def test_params_are_a_sorted_case_insensitive_map(calls: list[tuple[object, ...]]) -> None:
    table, model = GlobalParamsTable(), dict[str, str]()
    for call in calls:
        match call:
            case ("save", str(name), str(value)):
                table.save(name, value)
                model[name.lower()] = value
                assert table.load(name.upper()) == value
            case ("remove", str(name)):
                table.remove(name)
                model.pop(name.lower(), None)
            case ("range", str(first), str(end), int(limit)):
                names = [name for name in sorted(model) if first.lower() <= name < end.lower()]
                names = names[:limit] if limit > 0 else names
                assert table.load_range(first, end, limit) == (names, [model[name] for name in names])
    assert all_of(table) == model


def test_parameter_that_was_not_set() -> None:
    table = GlobalParamsTable()
    with pytest.raises(KeyNotExistError, match=r"no parameter 'etcd\.address': save it") as caught:
        table.load("Etcd.Address")
    assert caught.value.key == "etcd.address"
    table.remove("etcd.address")


@pytest.mark.parametrize("value", [8, None, b"8"])
def test_value_is_text(value: object) -> None:
    table = GlobalParamsTable()
    with pytest.raises(TypeError, match="write it as text"):
        table.save("port", value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the name of a parameter is a str"):
        table.load(value)  # type: ignore[arg-type]
    assert all_of(table) == {}


def test_example_of_the_contract(tmp_path: Path) -> None:
    table = GlobalParamsTable()
    table.load_yaml(written(tmp_path, "etcd:\n  address: localhost\n  port: 12379\n  rootpath: milvus/etcd\n"))
    assert all_of(table) == {"etcd.address": "localhost", "etcd.port": "12379", "etcd.rootpath": "milvus/etcd"}


def test_scalars_stay_as_they_are_written(tmp_path: Path) -> None:
    text = (
        "a: 0x10\nb: 1e3\nc: yes\nd: 'quoted '\ne:\nf: null\ng: [1, two, 3.0]\nh: 2026-11-22\n"
        "I.J: 1\ni:\n  K: &k 2\n  l: *k\nm: []\nn: {}\n"
    )
    table = GlobalParamsTable()
    table.load_yaml(written(tmp_path, text))
    assert all_of(table) == {
        "a": "0x10", "b": "1e3", "c": "yes", "d": "quoted ", "e": "", "f": "null", "g": "1,two,3.0", "h": "2026-11-22",
        "i.j": "1", "i.k": "2", "i.l": "2", "m": "",
    }  # fmt: skip


def test_later_file_overrides_an_earlier_one(tmp_path: Path) -> None:
    table = GlobalParamsTable()
    table.load_yaml(written(tmp_path, "a: 1\nb: 2\n"))
    table.load_yaml(written(tmp_path, "B: 3\nc: 4\n"))
    table.load_yaml(written(tmp_path, "# nothing\n"))
    assert all_of(table) == {"a": "1", "b": "3", "c": "4"}


@given(TREES.filter(lambda tree: isinstance(tree, dict)))
def test_every_tree_is_flattened(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, object]) -> None:
    model: dict[str, str] = {}
    twice = False

    def flatten(prefix: str, branch: dict[str, object]) -> None:
        nonlocal twice
        for key, value in branch.items():
            name = prefix + key.lower()
            if isinstance(value, dict):
                flatten(name + ".", value)
                continue
            twice = twice or name in model
            model[name] = ",".join(value) if isinstance(value, list) else str(value)

    flatten("", tree)
    path = written(tmp_path_factory.mktemp("yaml"), yaml.safe_dump(tree, allow_unicode=True))
    table = GlobalParamsTable()
    if twice:
        with pytest.raises(InvalidArgumentError, match="is set twice"):
            table.load_yaml(path)
        model = {}
    else:
        table.load_yaml(path)
    assert all_of(table) == model


def test_file_that_is_refused_changes_nothing(tmp_path: Path, subtests: pytest.Subtests) -> None:
    # A short text in which each name has twice as many parameters as the one before.
    doubled = "a: &a {p: 1, q: 1}\n" + "".join(
        f"{name}: &{name} {{p: *{before}, q: *{before}}}\n" for before, name in pairwise("abcdefghijklmnopqr")
    )
    # The same with maps that end in an empty map: no parameter, but 2^27 names.
    empty_doubled = "a: &a {p: {}, q: {}}\n" + "".join(
        f"{name}: &{name} {{p: *{before}, q: *{before}}}\n" for before, name in pairwise("abcdefghijklmnopqrstuvwxyz")
    )
    items_of_a_letter = f"a: &a [{','.join(['x'] * 1_000)}]\n" + "".join(f"b{n}: *a\n" for n in range(2_000))
    lists = f"a: &a [{','.join(['x' * 80] * 1_000)}]\n" + "".join(f"b{n}: *a\n" for n in range(400))
    items = f"a: &a {'x' * 50_000}\nb: [" + "*a," * 400 + "]\n"
    prefixes = f"? {'x' * 100_000}\n:" + "".join(f"\n  {n}: 1" for n in range(200))
    empty_prefixes = f"? {'ü' * 50_000}\n:" + "".join(f"\n  {n}: {{}}" for n in range(200))
    # Each name has one map more around its parameter than the one before.
    chained = "a0: &a0 {p: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{p: *a{n}}}\n" for n in range(100))

    cases = [
        ("a: 1\nA: 2\n", r"line 2, column 1: parameter 'a' is set twice"),
        ("a.b: 1\na:\n  b: 2\n", r"line 3, column 3: parameter 'a.b' is set twice"),
        ("a: [1\n", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML: expected a single document"),
        ("- a\n- b\n", "line 1, column 1: it is not a map of parameters"),
        ("a: [1, {b: 2}]\n", r"line 1, column 8: the list 'a' has an item that is not a scalar"),
        ("? [a]\n: 1\n", "a name is a text that is not empty"),
        ("'': 1\n", "a name is a text that is not empty"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n", "line 3, column 3: a name .* not merged by <<"),
        ("a: &a\n  b: *a\n", "'a.b' contains itself by an alias"),
        ("a: " + "{a: " * 5_000, "nests maps and lists too deeply"),
        ("\x01", "is not YAML"),
        (doubled, "more than 65536 parameters"),
        (empty_doubled, r"have \d+ bytes or more, but at most 16777216 are read: shorten"),
        (items_of_a_letter, "line .*: its aliases make more than 1048576 names, values and items: write out"),
        (lists, "at most 16777216 are read"),
        (items, "at most 16777216 are read"),
        (prefixes, "at most 16777216 are read"),
        (empty_prefixes, "at most 16777216 are read"),
        (chained, "has more than 100 maps around it: write flat names"),
        (f"{'x' * 1_000}: 1\n" * 2, "parameter 'x{120}…' is set twice"),
        ("a: " + "x" * (1 << 20), "has more than 1048576 bytes: split it"),
    ]
    for text, why in cases:
        with subtests.test(why):
            table = GlobalParamsTable()
            table.save("a", "before")
            with pytest.raises(InvalidArgumentError, match=why) as caught:
                table.load_yaml(written(tmp_path, text))
            assert str(tmp_path) in str(caught.value)
            assert all_of(table) == {"a": "before"}


def test_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        GlobalParamsTable().load_yaml(tmp_path / "none.yaml")


def test_path_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="embedded null byte"):
        GlobalParamsTable().load_yaml("a\0b")


@pytest.mark.parametrize("limit", [1.5, "1", None, True])
def test_limit_that_is_no_int_is_refused(limit: object) -> None:
    with pytest.raises(TypeError, match="limit must be an int"):
        GlobalParamsTable().load_range("a", "b", limit)  # type: ignore[arg-type]
