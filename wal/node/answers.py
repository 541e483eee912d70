"""Answers: what became known of a Produce stream's requests and was not sent yet. Pure.

What became known in one turn of the loop is one message, but for requests in the contract's form, which have a message each.
"""

from __future__ import annotations

from wal.pchannel import Together
from wal.rpc.api import append_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.codes import error_to_proto
from wal.rpc.outcomes import Outcome, outcomes_to_proto
from wal.rpc.results import range_of, result_to_proto

__all__ = ["Answers"]


class Answers:
    """The answers of one stream. Requests in our form are added to these lists, each by its number; `count` is how many there are."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Outcome]] = []
        self.together: list[tuple[int, Together]] = []
        """Results of messages that were appended together, with the number of the first."""
        self.single: list[tuple[int, Outcome]] = []
        """Outcomes of requests in the contract's form, which are answered in that form."""
        self.begun: list[append_pb2.BegunTxn] = []
        self.done: list[int] = []
        """The requests that succeeded and have no result."""

    @property
    def count(self) -> int:
        """Returns the number of requests that are answered; each message is one."""
        each = len(self.outcomes) + len(self.single) + len(self.begun) + len(self.done)
        return each + sum([results.count for _, results in self.together])

    def messages(self) -> list[proto.ProduceResponse]:
        """Returns what is to be sent."""
        found: list[proto.ProduceResponse] = []
        if self.outcomes or self.together or self.begun or self.done:
            self.outcomes.sort(key=_number)
            outcomes = outcomes_to_proto(self.outcomes)
            outcomes.appended.extend([range_of(number, results) for number, results in self.together])
            outcomes.begun.extend(self.begun)
            outcomes.done.extend(self.done)
            found.append(proto.ProduceResponse(outcomes=outcomes))
        found += [proto.ProduceResponse(produce=_answer_to_one(number, outcome)) for number, outcome in self.single]
        return found


def _answer_to_one(number: int, outcome: Outcome) -> proto.ProduceMessageResponse:
    if isinstance(outcome, BaseException):
        return proto.ProduceMessageResponse(request_id=number, error=error_to_proto(outcome))
    return proto.ProduceMessageResponse(request_id=number, result=result_to_proto(outcome))


def _number(numbered: tuple[int, Outcome]) -> int:
    return numbered[0]
