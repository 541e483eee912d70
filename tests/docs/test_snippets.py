"""The runner of snippets itself: a wrong page must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import blocks, matches, run

PAGE = """# A page

```python
import asyncio
await asyncio.sleep(0)
print(1 + 1)
```

```text
2
```

1. in a list

   ```python
   await asyncio.sleep(0)
   raise ValueError("here")
   ```

```python
try:
    asyncio.get_running_loop()
except RuntimeError:
    print("no loop here")
```

Words between, so this is not its output:

```text
True
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return page


def test_blocks_know_their_output_and_their_line(page: Path) -> None:
    first, second, third = blocks(page)
    assert first.code.startswith("import asyncio\nawait")
    assert (first.output, second.output, third.output) == ("2\n", None, None)
    assert PAGE.splitlines()[second.line - 1].strip() == second.code.splitlines()[0]


async def test_blocks_of_a_page_share_their_names(page: Path) -> None:
    first, second, third = blocks(page)
    namespace: dict[str, object] = {}
    assert await run(first, namespace) == "2\n"
    assert await run(third, namespace) == "no loop here\n"
    with pytest.raises(ValueError, match="here") as caught:
        await run(second, namespace)
    where = caught.traceback[-1]
    assert (str(where.path), where.lineno + 1) == (str(page), second.line + 1)


def test_output_is_compared_up_to_ticks_and_dots(subtests: pytest.Subtests) -> None:
    cases = [
        ("1\n2\n", "1\n2", True),
        ("1\n2\n", "1\n3", False),
        ("1\n2\n", "1", False),
        ("470614230261203968 b'x'", "470614230261203111 b'x'", True),
        ("47061423026120396 b'x'", "4706142302612039 b'x'", False),
        ("p0:1f2e:4096:0", "p0:…:4096:0", True),
        ("p0:1f2e:4096:1", "p0:…:4096:0", False),
    ]
    for printed, expected, same in cases:
        with subtests.test(printed):
            assert matches(printed, expected) is same
