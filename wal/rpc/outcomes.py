"""The outcomes of requests on a Produce stream, results and errors, as one message, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wal.message import AppendResult, ForgottenResult
from wal.rpc.api import append_pb2 as proto
from wal.rpc.codes import error_from_proto, error_to_proto
from wal.rpc.results import Numbered, ranges_of, results_of

__all__ = ["Outcome", "outcomes_from_proto", "outcomes_to_proto"]

Outcome = AppendResult | ForgottenResult | BaseException
"""What became of an append."""


def outcomes_to_proto(outcomes: Iterable[tuple[int, Outcome]]) -> proto.Outcomes:
    """Returns the message of the outcomes of appends, each with the number of its request; in ascending order it is smallest."""
    results: list[Numbered] = []
    failed: list[proto.FailedRange] = []
    error: BaseException | None = None
    next_failed: int | None = None
    for request_id, outcome in outcomes:
        if not isinstance(outcome, BaseException):
            results.append((request_id, outcome))
            continue
        message = failed[-1].error if outcome is error else error_to_proto(outcome)
        if request_id == next_failed and message == failed[-1].error:
            failed[-1].count += 1
        else:
            failed.append(proto.FailedRange(first_request_id=request_id, count=1, error=message))
        error, next_failed = outcome, request_id + 1
    return proto.Outcomes(appended=ranges_of(results), failed=failed)


def outcomes_from_proto(outcomes: proto.Outcomes) -> Iterator[tuple[int, Outcome]]:
    """Yields the outcomes of appends, results before errors. Requests that failed together share one error."""
    for appended in outcomes.appended:
        yield from results_of(appended)
    for failed in outcomes.failed:
        error = error_from_proto(failed.error)
        for request_id in range(failed.first_request_id, failed.first_request_id + failed.count):
            yield request_id, error
