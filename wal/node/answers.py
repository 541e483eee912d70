"""Answers: the outcomes of a Produce stream's requests that were not sent yet. Pure.

The outcomes of one turn of the loop are sent as one message, except for requests in the contract's form, which get a message each.
"""

from __future__ import annotations

from typing import Final

from wal.pchannel import Together
from wal.rpc.api import append_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.codes import error_to_proto
from wal.rpc.outcomes import Outcome, outcomes_to_proto
from wal.rpc.results import range_of, result_to_proto

__all__ = ["Answers"]

TAKEN_MAX: Final = 1024
"""The most requests whose outcomes become one message: about 5 ms, before other tasks get their turn."""


class Answers:
    """The answers of one stream. The stream adds the outcome of each request, with its number, to one of the lists."""

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
        """The number of requests that are answered; each message of an append counts as one."""
        each = len(self.outcomes) + len(self.single) + len(self.begun) + len(self.done)
        return each + sum([results.count for _, results in self.together])

    def take(self) -> tuple[list[proto.ProduceResponse], int]:
        """Removes answers, at most `TAKEN_MAX` of each kind; returns the messages to send, and how many requests they answer."""
        taken = Answers()
        taken.outcomes, self.outcomes = self.outcomes[:TAKEN_MAX], self.outcomes[TAKEN_MAX:]
        taken.single, self.single = self.single[:TAKEN_MAX], self.single[TAKEN_MAX:]
        taken.together, self.together = self.together, []
        taken.begun, self.begun = self.begun, []
        taken.done, self.done = self.done, []
        return taken._messages(), taken.count

    def _messages(self) -> list[proto.ProduceResponse]:
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
