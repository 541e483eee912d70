"""The checks of requests, and what a log answers from the answers of its pchannels."""

from __future__ import annotations

import pytest

from wal.errors import InvalidArgumentError, UnavailableError
from wal.message import MessageID
from wal.requests.pchannels import ForgetProducer, LastEvent, LatestTick, ListProducers, Truncate


def test_bad_values_make_no_request() -> None:
    for kind in (LatestTick, LastEvent):
        with pytest.raises(InvalidArgumentError, match="vchannel is empty"):
            kind("")
        with pytest.raises(TypeError, match="named by a str, not int"):
            kind(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="up_to must be a MessageID, not str"):
        Truncate("p0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a producer is named by a str"):
        ForgetProducer(None)  # type: ignore[arg-type]


def test_lists_of_pchannels_are_joined() -> None:
    assert ListProducers().join([(1, 2), (), (3,)]) == (1, 2, 3)
    with pytest.raises(UnavailableError):
        ListProducers().join([(1,), UnavailableError("away")])


def test_producer_is_forgotten_if_one_pchannel_knew_it() -> None:
    unknown, away = InvalidArgumentError("not known"), UnavailableError("away")
    forget = ForgetProducer("loader")
    forget.join([unknown, None])
    with pytest.raises(InvalidArgumentError, match="not known"):
        forget.join([unknown, unknown])
    with pytest.raises(UnavailableError):
        forget.join([None, away])


def test_misdirected_request_names_the_pchannels_of_the_log() -> None:
    error = Truncate(MessageID("p9", 1, 2, 3)).elsewhere(["p0", "p1"])
    assert "belongs to no pchannel of this log (p0, p1)" in str(error)
