"""Matching: which names a pattern matches, and the patterns that are refused."""

import copy
import pickle
import time
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message.matching import PATTERN_BYTES_MAX, Matching

texts = st.text(st.sampled_from("ab*?[].\\^$-é\U0001f600"), max_size=12)
printable = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)


def model(pattern: str, name: str) -> bool:
    """The rule as it is documented, one character after the other."""

    @cache
    def matches(at: int, of: int) -> bool:
        if at == len(pattern):
            return of == len(name)
        if pattern[at] == "*":
            return matches(at + 1, of) or (of < len(name) and matches(at, of + 1))
        return of < len(name) and pattern[at] in ("?", name[of]) and matches(at + 1, of + 1)

    return matches(0, 0)


@given(texts.filter(bool), texts)
@example("*ab*", "xaab")
@example("a*a", "a")
@example("[ab]", "a")
@example("**?", "")
def test_pattern_matches_as_its_model(pattern: str, name: str) -> None:
    assert (name in Matching(pattern)) == model(pattern, name)


@given(st.lists(texts.filter(bool), max_size=6), texts.filter(bool))
def test_pattern_is_disjoint_as_its_model(names: list[str], pattern: str) -> None:
    assert Matching(pattern).isdisjoint(names) == (not any(model(pattern, name) for name in names))


@given(printable.filter(lambda name: not set(name) & {"*", "?"}))
def test_name_without_wildcards_matches_itself_alone(name: str) -> None:
    assert name in Matching(name)
    assert name + "x" not in Matching(name)
    assert "x" + name not in Matching(name)


@given(printable)
def test_star_alone_matches_every_name(name: str) -> None:
    assert name in Matching("*")


@given(texts.filter(bool), texts.filter(bool))
def test_patterns_are_equal_by_their_text(one: str, other: str) -> None:
    assert (Matching(one) == Matching(other)) == (one == other)
    assert len({Matching(one), Matching(one)}) == 1
    assert pickle.loads(pickle.dumps(Matching(one))) == copy.copy(Matching(one)) == Matching(one)


def test_line_break_matches_as_any_character() -> None:
    assert "a\u2028b" in Matching("a?b")
    assert "a\nb" in Matching("a*b")


def test_other_values_match_nothing() -> None:
    assert 7 not in Matching("*")
    assert None not in Matching("*")
    assert b"orders" not in Matching("*")


def test_pattern_shows_its_text() -> None:
    assert f"{Matching('account-*')}" == repr(Matching("account-*")) == "Matching('account-*')"


@pytest.mark.parametrize("pattern", ["*a" * 127 + "*b", "a*" * 255, "?*" * 250 + "b"])
def test_hostile_pattern_takes_no_exponential_time(pattern: str) -> None:
    began = time.process_time()
    assert ("a" * 255 in Matching(pattern)) == (pattern[-1] == "*")
    assert time.process_time() - began < 1.0


# -- refused patterns


@pytest.mark.parametrize("pattern", [None, 7, b"account-*", ["account-*"], ("a", "b")])
def test_pattern_of_wrong_type_is_a_type_error(pattern: object) -> None:
    with pytest.raises(TypeError, match="takes a pattern \\(str\\)") as caught:
        Matching(pattern)  # type: ignore[arg-type]
    assert repr(pattern) in str(caught.value)


def test_longest_pattern_is_taken() -> None:
    assert "é" * 256 in Matching("é" * 256)
    assert len(("é" * 256).encode()) == PATTERN_BYTES_MAX


@pytest.mark.parametrize(("pattern", "length"), [("x" * 513, 513), ("é" * 257, 514)])
def test_longer_pattern_names_length_limit_and_remedy(pattern: str, length: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"is {length} bytes long: at most 512; shorten it with '\\*'"):
        Matching(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "matches no vchannel: .* Matching\\('\\*'\\) matches all"),
        ("a\n*", "holds control characters, .* write it without them"),
        ("a\x7f", "holds control characters"),
        ("a\ud800", "cannot be encoded as UTF-8, .* without lone surrogates"),
    ],
)
def test_pattern_that_matches_nothing_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        Matching(pattern)
