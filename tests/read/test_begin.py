"""The beginning of a read as an exchange of requests and answers: each script lists what `begin` or a question asks for, in order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wal.errors import ClosedError, TruncatedError
from wal.frame import FrameDraft, FrameView, Record, encode_frame
from wal.message import FORM_JOURNAL, Lineage, LogPosition, MessageID, Origin
from wal.read.beginning import AttachRequest, CursorRequest, begin
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.options import ReadOptions, Selection, StartAfter, StartFrom, TimeTickGTE
from wal.read.progress import Progress
from wal.read.truncated import first_event
from wal.storage.base import FramePage, StoredFrame
from wal.storage.search import MomentRequest, PageRequest, TickRequest, run

GONE = TruncatedError("it was truncated")


class Moment(msgspec.Struct, frozen=True):
    """A log of positions below `durable_end`, at one moment."""

    origin: Origin
    durable_end: int
    earliest: LogPosition
    failure: BaseException | None
    lineage: Lineage = Lineage(7)
    promised_tick: int = 5000
    newest: LogPosition | None = None
    last_truncated: LogPosition | None = None


def log(earliest: LogPosition = (0, 0), *, end: int = 10, pchannel: str = "p0", failure: BaseException | None = None) -> Moment:
    return Moment(Origin(pchannel, 7, 0, FORM_JOURNAL), end, earliest, failure)


def attached(moment: Moment) -> tuple[Moment, Selection]:
    return moment, Selection({"orders": 1}, floor=0)


def page(position: int, bodies: int) -> FramePage:
    """Returns a page with one frame: a transaction, whose event is after its bodies."""
    draft = FrameDraft()
    draft.commit([(("orders", 1), Record(b"x")) for _ in range(bodies)], names=[("orders", 1)], txn_id=1, keepalive_ms=1)
    head, *blocks = encode_frame(draft, incarnation=7, term=1, sequence=position, first_tick=1000 * position).buffers
    body = b"".join(blocks)
    view = FrameView.decode(head, lambda start, end: body[start:end])
    return FramePage([StoredFrame(position, position + 1, view)], position + 1, (position, bodies), view.header.promised_tick)


class Script:
    """Answers requests in their order, and raises the answers that are errors."""

    def __init__(self, *exchanges: tuple[object, object]) -> None:
        self.exchanges = list(exchanges)

    def __call__(self, request: object) -> Any:
        expected, answer = self.exchanges.pop(0)
        assert request == expected
        if isinstance(answer, BaseException):
            raise answer
        return answer


def begun(script: Script, *, cursor: bool = False, **options: Any) -> Progress:
    progress = Progress(ReadOptions.of(("orders",), **{"deliver_policy": None, "filters": (), **options}))
    run(begin(progress, has_cursor=cursor, measure=lambda start, end: end - start), script)
    assert script.exchanges == []
    return progress


def test_read_from_the_beginning_attaches_once() -> None:
    assert begun(Script((AttachRequest(), attached(log((3, 1)))))).at == 3


def test_search_begins_again_in_what_is_left() -> None:
    script = Script(
        (AttachRequest(), attached(log())),
        (TickRequest(2999, 0, 10), GONE),
        (AttachRequest(), attached(log((4, 0)))),
        (TickRequest(2999, 4, 10), (6, 1)),
        (AttachRequest(), attached(log((4, 0), end=12))),
    )
    assert begun(script, filters=TimeTickGTE(3000)).at == 6


def test_truncation_that_moves_nothing_is_raised() -> None:
    script = Script((AttachRequest(), attached(log())), (TickRequest(2999, 0, 10), GONE), (AttachRequest(), attached(log())))
    with pytest.raises(TruncatedError, match="it was truncated"):
        begun(script, filters=TimeTickGTE(3000))


def test_search_begins_again_where_the_vchannel_was_created() -> None:
    script = Script(
        (AttachRequest(), attached(log())),
        (TickRequest(2999, 0, 10), (10, 0)),
        (AttachRequest(), attached(log(pchannel="p1", end=20))),
        (TickRequest(2999, 0, 20), (15, 0)),
        (AttachRequest(), attached(log(pchannel="p1", end=20))),
    )
    progress = begun(script, filters=TimeTickGTE(3000))
    assert (progress.at, progress.origin(0).pchannel) == (15, "p1")


def test_cursor_is_loaded_before_the_log_is_judged() -> None:
    cursor = Cursor(CursorKey.of("c", ("orders",)), (1,), "p0", 7, (5, 0), None, 0, 0.0, FORM_JOURNAL)
    script = Script((AttachRequest(), attached(log(end=4))), (CursorRequest(), cursor), (AttachRequest(), attached(log())))
    assert begun(script, cursor=True).at == 5


def test_failed_log_raises_its_failure() -> None:
    with pytest.raises(ClosedError, match="over"):
        begun(Script((AttachRequest(), attached(log(failure=ClosedError("over"))))), filters=TimeTickGTE(3000))


def test_truncated_body_counts_as_its_transaction() -> None:
    body = MessageID("p0", 7, 2, 1, FORM_JOURNAL)
    script = Script((AttachRequest(), attached(log((2, 3)))), (PageRequest(2, 10), page(2, 3)), (AttachRequest(), attached(log((2, 3)))))
    assert begun(script, deliver_policy=StartAfter(body)).at == 2


def test_truncated_body_id_names_the_first_event() -> None:
    body = MessageID("p0", 7, 2, 1, FORM_JOURNAL)
    script = Script((AttachRequest(), attached(log((3, 0)))), (MomentRequest(), log((3, 0))), (PageRequest(3, 10), page(3, 3)))
    with pytest.raises(TruncatedError) as raised:
        begun(script, deliver_policy=StartFrom(body))
    assert raised.value.earliest == MessageID("p0", 7, 3, 3, FORM_JOURNAL)


def test_first_event_follows_truncations() -> None:
    script = Script(
        (MomentRequest(), log((2, 1))),
        (PageRequest(2, 10), GONE),
        (MomentRequest(), log((12, 0))),  # all that was shown is gone
        (MomentRequest(), log((12, 0), end=14)),
        (PageRequest(12, 14), page(12, 2)),
    )
    assert run(first_event(), script) == MessageID("p0", 7, 12, 2, FORM_JOURNAL)
    with pytest.raises(TruncatedError):
        run(first_event(), Script((MomentRequest(), log()), (PageRequest(0, 10), GONE), (MomentRequest(), log())))
