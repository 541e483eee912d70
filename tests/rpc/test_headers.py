"""The metadata of calls: what creates a stream, and tokens."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.foreign import creating_header
from wal.errors import InvalidArgumentError
from wal.message.wire_pb2 import MessageID
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.api.streaming_pb2 import CreateConsumerRequest, CreateProducerRequest, DeliverPolicy
from wal.rpc.headers import consumer_in, producer_in, token_header, token_in
from wal.runtime.secret import Secret

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(names, st.integers(0, 2**63 - 1), st.binary())
def test_stream_is_created_as_it_was_asked_for(name: str, term: int, start: bytes) -> None:
    pchannel = PChannelInfo(name=name, term=term)
    producer = CreateProducerRequest(pchannel=pchannel)
    assert producer_in([("user-agent", "x"), creating_header(producer), ("trace-bin", b"\xff")]) == producer
    policy = DeliverPolicy(start_from=MessageID(id=start))
    consumer = CreateConsumerRequest(pchannel=pchannel, deliver_policy=policy)
    header = creating_header(consumer)
    assert header[1].isascii()
    assert consumer_in([header]) == consumer


def test_other_metadata_is_refused_with_the_remedy(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[tuple[str, str]], str]] = [
        ([], "the call has 0 headers 'create-producer'"),
        ([("create-producer", "CgA="), ("create-producer", "CgA=")], "has 2 headers"),
        ([("create-producer", "%%%")], "is '%%%', which cannot be decoded"),
        ([("create-producer", "é")], "cannot be decoded"),
        ([("create-producer", base64.b64encode(b"\xff\xff").decode())], "cannot be decoded"),
        ([("create-producer", "")], "names no pchannel"),
        ([("create-producer", "x" * 100_000)], "send the base64 of a CreateProducerRequest"),
    ]
    for metadata, words in cases:
        with subtests.test(repr(metadata)):
            with pytest.raises(InvalidArgumentError) as refused:
                producer_in(metadata)
            assert words in str(refused.value)
            assert len(str(refused.value)) < 500


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_token_arrives(text: str) -> None:
    assert token_in([token_header(Secret(text))]) == Secret(text)


@pytest.mark.parametrize("text", ["", "é", "a\nb", " a", "a "])
def test_token_that_no_header_carries_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="printable ASCII") as refused:
        token_header(Secret(text))
    assert repr(text) not in str(refused.value)


@pytest.mark.parametrize("metadata", [[], [("authorization", "Basic x")], [("authorization", "Bearer a"), ("authorization", "Bearer b")]])
def test_other_metadata_has_no_token(metadata: list[tuple[str, str]]) -> None:
    assert token_in(metadata) is None
