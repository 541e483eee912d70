"""TimestampOracle: ticks that stay unique and increasing across crashes.

Owns: one key of a KV, on which it saves a limit ahead of time. Guarantees: every tick is below a saved limit, and after a restart not below
the last saved limit. So ticks increase across crashes, steps of the wall clock in both directions and overflow of the logic.

The saved limit bounds how far ticks run ahead of the wall clock: it is the wall clock plus `save_window_s` or, when ticks already run ahead
of that, AHEAD_STEP_MS beyond the last tick. So a crash costs at most `save_window_s`. Each further crash before the wall clock has caught
up costs at most AHEAD_STEP_MS, and a step back of the wall clock its own size. A clean close costs nothing, because it lowers the limit
again. While ticks are ahead they use up the logic, and the wall clock catches up. `HybridClock`, pure, computes the ticks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import msgspec

from wal.errors import ChannelFencedError, ClosedError, FormatError, InvalidArgumentError, WouldBlockError
from wal.runtime.tasks import AsyncClosing
from wal.timestamp.clock import MachineClock, ScheduledCall, WallClock
from wal.timestamp.timestamp import COUNT_MAX, LOGICAL_BITS, LOGICAL_MAX, MILLISECONDS_MAX, TICK_MAX, check_int

if TYPE_CHECKING:
    from wal.storage.kv import KVBase


_STARTS_MAX: Final = 64
"""The number of other starts that may overtake this one before it gives up."""


class SavedLimit:
    """The one key of the KV that bounds an oracle's ticks.

    Owns: the form of the key's value and its writer. Guarantees: the KV has the limit when `raise_to` returns, and only the oracle that
    last took over the key can raise it. After a lost answer the value is read before the next save, never guessed.

        value on the key:  "<limit in milliseconds, decimal> <owner, 16 hexadecimal digits>"     every start is a new owner

    The limit on `key`, in milliseconds, of one owner.
    """

    def __init__(self, kv: KVBase, key: str) -> None:
        self._kv = kv
        self._key = key
        self._owner = secrets.token_hex(8)
        self._held: str | None = None  # the value in the KV, unless a save failed since
        self._unsure = True

    async def take_over(self, choose: Callable[[int], int]) -> int:
        """Makes this the owner: saves `choose(limit saved before, 0 if none)` and returns it."""
        for _ in range(_STARTS_MAX):
            before = await self._kv.find(self._key)
            limit_ms = choose(0 if before is None else self._decode(before)[0])
            text = self._encode(limit_ms)
            if await self._kv.compare_and_swap(self._key, before, text):
                self._held, self._unsure = text, False
                return limit_ms
        raise ChannelFencedError(f"{_STARTS_MAX} other oracles took {self._key!r} over at the same time: let one start")

    async def raise_to(self, limit_ms: int) -> None:
        """Saves a limit. Raises ChannelFencedError when another oracle took over, and the KV's error when the outcome of the save is
        unknown.
        """
        text = self._encode(limit_ms)
        while self._unsure or not await self._swap(text):
            # Either another oracle took over, or an answer was lost and the KV holds an earlier save of this one.
            stored = await self._kv.find(self._key)
            if stored is None or self._decode(stored)[1] != self._owner:
                raise ChannelFencedError(
                    f"another oracle took {self._key!r} over (it holds {stored!r}): no tick is handed out here any more"
                )
            self._held, self._unsure = stored, False
            if stored == text:
                return

    async def highest(self) -> int:
        """Returns the highest limit that any oracle of this log has saved, in milliseconds; 0 without one."""
        _, texts = await self._kv.load_with_prefix(LIMITS)
        return max((self._decode(text)[0] for text in texts), default=0)

    async def give_back(self, limit_ms: int) -> None:
        """Saves a lower limit, if the value in the KV is certainly this owner's; otherwise does nothing, which costs as much as a crash."""
        if not self._unsure:
            await self._swap(self._encode(limit_ms))

    async def _swap(self, text: str) -> bool:
        self._unsure = True  # until the answer is here, whatever happens meanwhile
        swapped = await self._kv.compare_and_swap(self._key, self._held, text)
        if swapped:
            self._held, self._unsure = text, False
        return swapped

    def _encode(self, limit_ms: int) -> str:
        if limit_ms > MILLISECONDS_MAX:
            raise InvalidArgumentError(f"a limit of {limit_ms} ms is above {MILLISECONDS_MAX} (the year 4199): set the wall clock")
        return f"{limit_ms} {self._owner}"

    def _decode(self, text: str) -> tuple[int, str]:
        digits, _, owner = text.partition(" ")
        # The form that `_encode` writes: isdigit alone accepts digits outside ASCII, which int() would read.
        if not (digits.isascii() and digits.isdigit() and owner) or int(digits) > MILLISECONDS_MAX:
            raise FormatError(f"{self._key!r} holds {text!r}, which an oracle did not save: give the oracle a key of its own")
        return int(digits), owner


LIMITS: Final = "timestamp/"
"""The prefix of the keys of all oracles of a log."""
LIMIT_KEY: Final = "timestamp/limit"
"""The key of the only oracle of a log, or of the oracle of a cluster's leader."""
SAVE_WINDOW_S: Final = 3.0
AHEAD_MAX_S: Final = 60.0
"""The largest lead over the wall clock for a tick from outside; a larger lead of the log's own ticks is worth a warning."""
AHEAD_STEP_MS: Final = 10
"""The time that one save adds while ticks run ahead of the wall clock: 2.6 million ticks, more than are needed until the KV answers."""
_RENEWAL: Final = 3
"""The limit is saved again when less than a third of the window is left: 1 s of 3 s for the KV to answer."""
_log: Final = logging.getLogger("wal.timestamp")


class OracleStatistics(msgspec.Struct, frozen=True):
    """Counters of an oracle since it was started. `last` and `limit` are ticks. `ahead_s`: the lead of the last tick over the wall clock
    (negative: its lag). `window_s`: the lead of the saved limit over it. `saves` succeeded, `failures` did not.
    """

    last: int
    limit: int
    ahead_s: float
    window_s: float
    saves: int
    failures: int


class TimestampOracle(AsyncClosing):
    """Ticks for this process, saved ahead in `kv` under `key`.

    `await start()` first. A second oracle that is started on the same key takes over: all its ticks are larger, and the next save of the
    first one fails; from then on that one raises ChannelFencedError (until then it may use up its saved ticks, which no other has). `clock`
    provides wall time and timers; None means those of this machine.
    """

    def __init__(
        self,
        kv: KVBase,
        *,
        key: str = LIMIT_KEY,
        clock: WallClock | None = None,
        save_window_s: float = SAVE_WINDOW_S,
        update_interval_s: float = 0.05,
        observe_ahead_max_s: float = AHEAD_MAX_S,
    ) -> None:
        if not update_interval_s > 0:
            raise InvalidArgumentError(f"update_interval_s={update_interval_s} must be above 0: Milvus' is 0.05")
        if not save_window_s >= update_interval_s * _RENEWAL:
            raise InvalidArgumentError(
                f"save_window_s={save_window_s} is below {_RENEWAL} times update_interval_s={update_interval_s}: the limit could "
                f"not be renewed in time; make the window longer"
            )
        if not observe_ahead_max_s >= 0:
            raise InvalidArgumentError(f"observe_ahead_max_s={observe_ahead_max_s} is negative: give 0 or more")
        self._saved = SavedLimit(kv, key)
        self._clock = MachineClock() if clock is None else clock
        self._wall = self._clock.wall
        self._window_ms = max(1, int(save_window_s * 1000))
        self._update_interval_s = update_interval_s
        self._observe_ahead_ms = int(observe_ahead_max_s * 1000)
        self._own_ms = 0
        """The largest tick that the log itself had promised or saved before this oracle returned any, in milliseconds."""
        self._table = HybridClock()
        self._limit = 0  # a tick; 0 before the start and after the end: then no range fits, and take() finds the reason
        self._started = False
        self._end: ChannelFencedError | ClosedError | None = None
        self._failure: Exception | None = None
        self._timer: ScheduledCall | None = None
        self._starting: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[Exception | None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._saves = 0
        self._failures = 0
        self._warned = False
        """Whether ticks are ahead of the clock and a warning was logged."""

    @property
    def limit(self) -> int:
        """Returns the saved limit, a tick: every returned tick is smaller. 0 before start() and after the end."""
        return self._limit

    @property
    def last(self) -> int:
        """Returns the largest tick returned or observed."""
        return self._table.last

    @property
    def failure(self) -> Exception | None:
        """Returns the error of the last save; None if it succeeded. While it lasts, ticks end at `limit`."""
        return self._failure

    def take(self, count: int) -> int | None:
        """Returns the first tick of a range of `count` (1 … 262,144), all above every tick before it. The hot path: it never waits.

        Returns None when the saved limit is used up: `await extend()` and take again. Raises ClosedError or ChannelFencedError after
        the end.
        """
        first = self._table.take(int(self._wall() * 1000), count, self._limit)
        if first is None and self._end is not None:
            raise self._end
        return first

    async def get_timestamp(self, count: int = 1, *, bounded: bool = False) -> range:
        """Returns a range of `count` ticks (1 … 262,144). Waits for the KV when the saved limit is used up, and raises its error if it
        fails.

        `bounded` is for callers without a limit of their own: their range may not begin a millisecond that is more than
        `observe_ahead_max_s` ahead of the wall clock. It raises WouldBlockError then, and uses up no tick.
        """
        check_int("count", count, 1, COUNT_MAX)
        while True:
            if bounded:
                self._check_room(count)
            if (first := self.take(count)) is not None:
                return range(first, first + count)
            await self.extend()

    async def allocate(self) -> int:
        """Returns one tick."""
        return (await self.get_timestamp())[0]

    def observe(self, tick: int) -> None:
        """Makes every later tick larger than `tick`, which comes from outside. Raises as `check_ahead` does."""
        self.check_ahead(tick)
        self._table.observe(tick)

    async def observe_seen(self, tick: int) -> None:
        """Observes a tick that a client of this log has seen.

        A tick below the limit of any oracle of the log is accepted, however far it is ahead of the wall clock: the log itself returned it.
        The limits are read only for a tick that `observe` refuses.
        """
        try:
            self.observe(tick)
        except InvalidArgumentError:
            if tick >= await self._saved.highest() << LOGICAL_BITS:
                raise
            self._table.observe(tick)
            self._warn_ahead()

    def adopt(self, tick: int) -> None:
        """Makes every later tick larger than `tick`, which is the log's own: it was promised, or another oracle of the log returned it.

        Since ticks must ascend, it is adopted however far it is ahead of the wall clock. Ticks stay ahead until the clock has caught up.
        """
        check_int("tick", tick, 0, TICK_MAX)
        self._own_ms = max(self._own_ms, tick >> LOGICAL_BITS)
        if tick > self._table.last:
            self._table.observe(tick)
            self._warn_ahead()

    def check_ahead(self, tick: int) -> None:
        """Raises InvalidArgumentError if the tick is above the last one and more than `observe_ahead_max_s` ahead of the wall clock.

        Otherwise one wrong clock on another machine would advance this one for good, and a wait for such a tick would last as long. The
        bound is measured from the wall clock alone: measured from the last tick, each call could advance it further.
        """
        check_int("tick", tick, 0, TICK_MAX)
        ahead_ms = (tick >> LOGICAL_BITS) - self._now_ms()
        if tick > self._table.last and ahead_ms > self._observe_ahead_ms:
            raise InvalidArgumentError(
                f"the tick {tick} is {ahead_ms / 1000} s ahead of this clock, and {self._observe_ahead_ms / 1000} s are allowed: "
                "set the clock of the machine that it comes from, or give a tick of this log"
            )

    def _warn_ahead(self) -> None:
        ahead_ms = (self._table.last >> LOGICAL_BITS) - self._now_ms()
        if ahead_ms > self._observe_ahead_ms and not self._warned:
            self._warned = True
            _log.warning(
                "time ticks are %.0f s ahead of this machine's clock, which was ahead when they were given, or was set back since: they "
                "ascend all the same, and slowly, until the clock has caught up; if the clock is wrong now, set it",
                ahead_ms / 1000,
            )

    def _check_room(self, count: int) -> None:
        """Raises WouldBlockError if `count` more ticks would begin a millisecond that is too far ahead.

        The lead is measured from the wall clock, or from the log's earlier ticks if they are later.
        """
        last = self._table.last
        ahead_ms = (last >> LOGICAL_BITS) - max(self._now_ms(), self._own_ms)
        if ahead_ms >= self._observe_ahead_ms and (last & LOGICAL_MAX) + count >= COUNT_MAX:
            raise WouldBlockError(
                f"the ticks are {ahead_ms / 1000} s ahead of this clock, at most {self._observe_ahead_ms / 1000} s are allowed: ask for "
                f"fewer than {count} at a time, or wait"
            )

    async def start(self) -> None:
        """Takes over the key and saves a first limit; then ticks can be taken. Idempotent; it can be retried after a failure."""
        if self._end is not None:
            raise self._end
        if self._started:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="timestamp-oracle-start")
            self._starting.add_done_callback(self._start_done)
        await asyncio.shield(self._starting)

    async def extend(self) -> None:
        """Saves a limit further ahead, one save for all callers that wait; raises the KV's error when it fails.

        It returns at once when the saved limit is far enough ahead.
        """
        if self._end is not None:
            raise self._end
        if not self._started:
            raise InvalidArgumentError("the oracle is not started: await start() first")
        if not self._is_saving():
            if self._target_ms() <= self._limit >> LOGICAL_BITS:
                return
            self._save_in_background()
        assert self._saving is not None
        error = await asyncio.shield(self._saving)
        if error is not None:
            raise error

    async def close(self) -> None:
        """Ends the oracle: it returns no more ticks. Lowers the saved limit to the last tick if the KV answers. Idempotent."""
        if self._closing is None:
            if self._end is None:
                self._end = ClosedError("the timestamp oracle is closed: start a new one")
            self._limit = 0
            if self._timer is not None:
                self._timer.cancel()
            self._closing = asyncio.create_task(self._close(), name="timestamp-oracle-close")
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def statistics(self) -> OracleStatistics:
        """Returns the current counts."""
        now_ms = self._now_ms()
        return OracleStatistics(
            last=self._table.last,
            limit=self._limit,
            ahead_s=((self._table.last >> LOGICAL_BITS) - now_ms) / 1000,
            window_s=((self._limit >> LOGICAL_BITS) - now_ms) / 1000,
            saves=self._saves,
            failures=self._failures,
        )

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)

    def _target_ms(self) -> int:
        return max(self._now_ms() + self._window_ms, (self._table.last >> LOGICAL_BITS) + AHEAD_STEP_MS)

    async def _start(self) -> None:
        try:
            self._wall()
        except OverflowError as error:  # Python counts the nanoseconds since 1970 in 64 bits
            raise InvalidArgumentError(
                f"the wall clock is past the year 2262, which Python cannot tell ({error}): set the clock"
            ) from error
        limit_ms = await self._saved.take_over(self._first_limit_ms)
        self._saves += 1
        if self._end is None:
            self._limit = limit_ms << LOGICAL_BITS
            self._started = True
            self._arm()

    def _first_limit_ms(self, saved_ms: int) -> int:
        # Ticks continue from the saved limit, even if its owner crashed right after saving it.
        self.adopt(max(0, (saved_ms << LOGICAL_BITS) - 1))
        return self._target_ms()

    def _start_done(self, task: asyncio.Task[None]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # retrieved here, since the caller of start() may be gone

    def _arm(self) -> None:
        self._timer = self._clock.call_later(self._update_interval_s, self._update)

    def _update(self) -> None:
        """Renews the limit in time, one save after the other; the next turn of the timer retries a failed save."""
        if self._end is not None:
            return
        now_ms, last_ms = self._now_ms(), self._table.last >> LOGICAL_BITS
        if last_ms - now_ms > self._observe_ahead_ms:
            self._warn_ahead()
        else:
            self._warned = False
        base_ms = max(now_ms, last_ms)
        left_ms = (self._limit >> LOGICAL_BITS) - base_ms
        if not self._is_saving() and left_ms * _RENEWAL <= self._target_ms() - base_ms:
            self._save_in_background()
        self._arm()

    def _is_saving(self) -> bool:
        return self._saving is not None and not self._saving.done()

    def _save_in_background(self) -> None:
        self._saving = asyncio.create_task(self._save(self._target_ms()), name="timestamp-oracle-save")

    async def _save(self, limit_ms: int) -> Exception | None:
        try:
            await self._saved.raise_to(limit_ms)
        except ChannelFencedError as error:
            self._limit = 0
            if self._end is None:
                self._end = error
            return error
        except Exception as error:
            self._failure = error
            self._failures += 1
            return error
        self._failure = None
        self._saves += 1
        if self._end is None:
            self._limit = limit_ms << LOGICAL_BITS
        return None

    async def _close(self) -> None:
        for task in (self._starting, self._saving):
            if task is not None:
                await asyncio.wait([task])
        try:
            await self._saved.give_back((self._table.last >> LOGICAL_BITS) + 1)
        except Exception as error:
            self._failure = error


class HybridClock:
    """A hybrid logical clock (the form of Milvus' timestamps): turns wall time and a limit into unique, increasing ticks.

    It owns the largest tick returned or observed. It guarantees that every range is above all earlier ones, within one millisecond and
    below the limit. It cannot wait and reads no clock; time and limit come from the oracle.

    The physical part follows the wall clock while that is ahead. When it is not (it stepped back, or larger ticks from outside were
    observed) the logic counts up, and a millisecond whose logic is used up is followed by the next. So physical time runs ahead of the wall
    clock only by the size of the step or of the observed lead, plus 1 ms for every 262,144 ticks returned meanwhile.
    """

    __slots__ = ("last",)

    last: int
    """The largest tick returned or observed; the next one is larger."""

    def __init__(self) -> None:
        self.last = 0

    def take(self, now_ms: int, count: int, limit: int) -> int | None:
        """Returns the first tick of a range of `count` (1 … COUNT_MAX), or None when the range would not end below `limit`.

        `now_ms` is the wall time in milliseconds, `limit` a tick. None changes nothing.
        """
        if not 0 < count <= COUNT_MAX:
            raise InvalidArgumentError(f"count={count} is out of bounds: take 1 … {COUNT_MAX} ticks in one call")
        first = self.last + 1
        now = now_ms << LOGICAL_BITS
        if now > first:
            first = now
        elif (first & LOGICAL_MAX) + count > COUNT_MAX:
            first = (first | LOGICAL_MAX) + 1
        if first + count > limit:
            return None
        self.last = first + count - 1
        return first

    def observe(self, tick: int) -> None:
        """Makes every later tick larger than `tick`."""
        if tick > self.last:
            self.last = tick
