"""The checks of requests about vchannels and channels."""

from __future__ import annotations

from typing import Any

import pytest

from wal.channels.owners import OwnerDescription
from wal.errors import InvalidArgumentError
from wal.requests.vchannels import CreateChannels, CreateVChannel, DestroyChannels, DropVChannel


@pytest.mark.parametrize("kind", [CreateVChannel, DropVChannel])
def test_bad_names_are_refused(kind: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="vchannel is empty"):
        kind("")
    with pytest.raises(TypeError, match="named by a str"):
        kind(5)


def test_bad_channels_are_refused() -> None:
    with pytest.raises(TypeError, match="owner must be an OwnerDescription"):
        CreateChannels("me")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="count=61 is not between 1 and 60"):
        CreateChannels(OwnerDescription("me"), 61)
    with pytest.raises(InvalidArgumentError, match="'a' more than once"):
        DestroyChannels(("a", "a"))


def test_drops_name_the_vchannels_that_end() -> None:
    assert DropVChannel("a").ends == ("a",)
    assert DestroyChannels(("a", "b")).ends == ("a", "b")
    assert CreateVChannel("a").ends == ()
