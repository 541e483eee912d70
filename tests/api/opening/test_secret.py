"""`Secret` itself, and the part of a URL that `shown` keeps."""

from __future__ import annotations

import copy
import pickle

import pytest

from wal import Secret
from wal.runtime.secret import shown


def test_secret_shows_a_mask_and_reveals_text() -> None:
    secret = Secret("hunter2")
    assert (repr(secret), str(secret), f"{secret:>5}", f"{secret!r}") == ("Secret('***')", "***", "  ***", "Secret('***')")
    assert secret.reveal() == "hunter2"
    assert not hasattr(secret, "__dict__")
    url = Secret.of_url("etcd://u:hunter2@a/r")
    assert (str(url), repr(url), url.reveal()) == ("etcd://u:***@a/r", "Secret('etcd://u:***@a/r')", "etcd://u:hunter2@a/r")


def test_secrets_compare_by_text_with_secrets_only() -> None:
    assert Secret("a") == Secret("a") == Secret("a", mask="…")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret("ä\udcff") == Secret("ä\udcff")
    assert len({Secret("a"), Secret("a"), Secret("b"), "a"}) == 3
    assert bool(Secret("a"))
    assert not Secret("")


def test_secret_is_immutable_and_copyable() -> None:
    secret = Secret("a", mask="b")
    for name in ("_text", "_mask", "text"):
        with pytest.raises(AttributeError):
            setattr(secret, name, "c")
    with pytest.raises(AttributeError):
        del secret._text
    for same in (copy.copy(secret), copy.deepcopy(secret), pickle.loads(pickle.dumps(secret))):
        assert (same, str(same), same.reveal()) == (secret, "b", "a")
    assert Secret.of(secret) is secret
    assert Secret.of_url(secret) is secret
    with pytest.raises(TypeError, match="not bytes"):
        Secret(b"hunter2")  # type: ignore[arg-type]


def test_text_without_a_secret_stays(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "data/",
        "memory:",
        "meta.sqlite3",
        "mail@home/meta.sqlite3",
        "x/y:z@home",
        "etcd://a:1,b.example:2,[::1]:3,[::1]/by-dev/meta/",
        "etcd://root@a/r?password_file=/p&timeout_s=2.5",
        "etcd+ssl://a/r?ca=ca.pem&certificate=c.pem&key=k.pem",
        "pulsar+ssl://h:6651,i:6651/public/default",
    ]
    for plain in cases:
        with subtests.test(repr(plain)):
            assert shown(plain) == plain


def test_shown_part_of_a_url_with_a_secret(subtests: pytest.Subtests) -> None:
    cases = [
        ("etcd://u:hunter2@a,b:1/r", "etcd://u:***@a,b:1/r"),
        ("etcd://u:hun/ter?2@a/r", "etcd://u:***@a/r"),
        ("etcd://u:hun@ter2@a/r", "etcd://u:***@a/r"),
        ("etcd://:hunter2@a/r", "etcd://:***@a/r"),
        ("etcd://root:hunter2/r", "etcd://root:***/r"),
        ("etcd://a/r?timeout_s=hunter2&x=y&z", "etcd://a/r?timeout_s=***&x=***&***"),
        ("pulsar://hunter2@h/t/n", "pulsar://***@h/t/n"),
        ("pulsar://h:hunter2/t/n#token=hunter2", "pulsar://h:***/t/n#token=***"),
        ("u:hunter2@h/r", "u:***@h/r"),
    ]
    for url, left in cases:
        with subtests.test(repr(url)):
            assert shown(url) == left
