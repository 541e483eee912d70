"""Writes the golden frames: `python -m tests.golden.write_frames CASE…` (or `--all`).

The files are the format. An existing case is rewritten only with `--force`, which is a change of the format and needs a new FORMAT_VERSION
once version 1 is frozen.
"""

from __future__ import annotations

import argparse
import json

from tests.golden.frame_cases import CASES, FOLDER, GOLDEN, describe, encode_case, path_of


def main() -> None:
    """Writes the bytes of the given cases, and the decoded content of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*GOLDEN, []], help="the cases to write")
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--force", action="store_true", help="write a case over the one that is there")
    arguments = parser.parse_args()
    cases = list(CASES) if arguments.all else arguments.cases
    if not cases:
        parser.error("name the cases to write, or --all")
    for case in cases:
        path = path_of(case)
        data = b"".join(encode_case(case).buffers)
        if path.exists() and path.read_bytes() != data and not arguments.force:
            parser.error(f"{path.name} is there and differs: writing it again (--force) changes the format")
        path.write_bytes(data)
        print(f"{path.name}: {len(data)} bytes")
    described = {case: describe(path_of(case).read_bytes()) for case in GOLDEN if path_of(case).exists()}
    text = json.dumps(described, indent=1, ensure_ascii=False)
    (FOLDER / "frame_v1.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
