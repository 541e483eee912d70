"""Measures the cost of a frame: draft and encode, decode and columns, for 256 messages of 1 KB over 1, 64 and 256 vchannels.

    python benchmarks/frame_codec.py

Prints the best of many rounds in microseconds, so that other work on the machine does not count, beside the target of each line.
The last line is a frame of JSON that is compressed: what that adds to encoding and decoding, and the ratio.
One reader's view of a frame is a lazy `decode` and the columns of its own vchannel; `all runs` reads every message of the frame.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from wal.frame import Compressor, EncodedFrame, FrameDraft, FrameView, Record, encode_frame

MESSAGES = 256
PAYLOADS = [bytes([at]) * 1024 for at in range(MESSAGES)]
ROUNDS, CALLS = 30, 50


def write_frame(vchannels: int) -> Callable[[], EncodedFrame]:
    """Drafts and encodes one frame, with a run of equal length for each vchannel."""
    share = MESSAGES // vchannels
    runs = [((f"by-dev-{at:06d}", 1), [Record(payload) for payload in PAYLOADS[at * share : (at + 1) * share]]) for at in range(vchannels)]

    def write() -> EncodedFrame:
        draft = FrameDraft()
        for name, records in runs:
            draft.append(name, records)
        return encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=1 << 60)

    return write


def read_frame(frame: EncodedFrame, names: set[str] | None) -> Callable[[], int]:
    """Decodes the frame and the columns of these vchannels (None: all); returns the number of messages."""
    head, body = frame.buffers[0], b"".join(frame.buffers[1:])

    def read() -> int:
        view = FrameView.decode(head, lambda start, end: body[start:end], lazy=names is not None)
        runs = view.runs if names is None else view.runs.find(names)
        return sum(len(view.columns(run).payloads) for run in runs)

    return read


def microseconds(call: Callable[[], object]) -> float:
    """Returns the best time of one call."""
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def compression() -> str:
    """Returns the time that compressing 256 records of JSON of 1 KB adds to the frame, in microseconds, and the ratio of sizes."""
    records = [
        Record(b'{"flight": %d, "carrier": "UA", "origin": "EWR", "destination": "ORD", "delay_s": %d}' % (at, at * 7919 % 5000) * 12)
        for at in range(MESSAGES)
    ]

    def write(compressor: Compressor | None) -> EncodedFrame:
        draft = FrameDraft()
        draft.append(("flights", 1), records)
        return encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=1 << 60, compressor=compressor)

    compressor = Compressor()
    plain, packed = write(None), write(compressor)
    encoding = microseconds(lambda: write(compressor)) - microseconds(lambda: write(None))
    decoding = microseconds(read_frame(packed, None)) - microseconds(read_frame(plain, None))
    return f"zstd, JSON of 1 KB: {plain.length / packed.length:.1f} times smaller; encoding +{encoding:.0f} µs, decoding +{decoding:.0f} µs"


def main() -> None:
    """Prints a line for each number of vchannels and each way of using the frame."""
    print(f"{MESSAGES} messages of 1 KB a frame, best of {ROUNDS} rounds of {CALLS}")
    print(f"{'vchannels':>9}  {'':22} {'µs':>6}  {'target':>6}")
    encode_targets = {1: 70, 64: 200, 256: 350}
    one_targets = {1: 70, 256: 120}
    for vchannels in (1, 64, 256):
        write = write_frame(vchannels)
        frame = write()
        one, everything = read_frame(frame, {"by-dev-000000"}), read_frame(frame, None)
        assert (one(), everything()) == (MESSAGES // vchannels, MESSAGES)
        for label, call, target in (
            ("draft and encode", write, encode_targets.get(vchannels)),
            ("decode and one run", one, one_targets.get(vchannels)),
            ("decode and all runs", everything, None),
        ):
            print(f"{vchannels:>9}  {label:22} {microseconds(call):>6.0f}  {target or '':>6}")
    print(compression())


if __name__ == "__main__":
    main()
