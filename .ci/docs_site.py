"""The hooks of the documentation site: pages beside docs/ become a part of it, and links lead where the site has their targets.

A link to a page or a picture of the site is rewritten to its place there; one to anything else of the repository, such as a test, becomes
plain text. Other links stay, and mkdocs checks all of them. A picture of docs/pictures/ becomes a part of its page, so that its colours
follow the palette of the site. The first mention of a public name or call in a page leads to its entry in the API reference.
"""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from typing import Any, Final

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""The pages beside docs/, and their place in the site. Pictures beside them come along."""
SEARCHED_FIRST: Final = "reference/glossary.md"
"""The page that a search finds before others: it leads from words of other systems to what helps here."""
CALLS_OF_A_LOG: Final = "reference/calls-by-task.md"
"""The page that names the calls of a log alone, without `log.`."""
_PICTURE: Final = re.compile(r'<p><img alt="[^"]*" src="[^"]*?pictures/([\w-]+)\.svg" ?/></p>')
_ENTRY: Final = re.compile(r"^::: ((?:wal|wal\.bridge|wal\.errors)\.(\w+))$", re.MULTILINE)
_SPAN: Final = re.compile(r"<a .*?</a>|<h\d.*?</h\d>|<pre.*?</pre>|<svg.*?</svg>|<code>(?P<code>[^<]+)</code>", re.DOTALL)
_CALL: Final = re.compile(r"(?:await |async with )?(?:(?P<owner>log|scanner|txn|consumer|delivery)\.)?(?P<name>\w+)(?P<call>\(.*)?")
_OWNERS: Final = {"log": "WALAccesser", "scanner": "Scanner", "txn": "Txn", "consumer": "Consumer", "delivery": "Delivery"}
_log: Final = get_plugin_logger("docs_site")
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?P<start>!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\()(?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages beside docs/, and their pictures."""
    for source, place in _places().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrites the links of a page."""
    if page.file.src_uri == SEARCHED_FIRST:
        page.meta["search"] = {"boost": 3}
    source = Path(page.file.abs_src_path).resolve()
    places = _places()

    def rewritten(link: re.Match[str]) -> str:
        target, anchor = link["target"], link["anchor"] or ""
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = Path(os.path.normpath(source.parent / target))
        known = places.get(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
        if known is None and path.is_relative_to(ROOT / "docs") and path.is_file():
            known = str(path.relative_to(ROOT / "docs"))
        if known is not None:
            return f"{link['start']}{os.path.relpath(known, os.path.dirname(page.file.src_uri) or '.')}{anchor})"
        return link["text"] if path.exists() else link[0]  # a file that is missing is left to mkdocs, which reports it

    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(rewritten, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(rewritten, markdown[at:])])


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Puts the pictures into the page, and resolves links of docstrings to pages, which are written as `site:docs/howto/consumers.md`."""

    def resolved(link: re.Match[str]) -> str:
        file = files.get_file_from_path(link[1])
        if file is None:
            _log.warning("a docstring on %s names docs/%s, which does not exist", page.file.src_uri, link[1])
            return link[0]
        return f'href="{get_relative_url(file.url, page.url)}"'

    def picture(image: re.Match[str]) -> str:
        svg = (ROOT / "docs" / "pictures" / f"{image[1]}.svg").read_text()
        return svg.replace(' class="picture"', ' class="picture" style="display:block;width:100%;height:auto;max-width:24rem;margin:1em 0"')

    html = re.sub(r'href="site:docs/([^"]+)"', resolved, _PICTURE.sub(picture, html))
    if page.file.src_uri.startswith("reference/api"):
        return html
    return _with_entries(html, "log" if page.file.src_uri == CALLS_OF_A_LOG else None)


def _with_entries(html: str, owner_of_calls: str | None) -> str:
    """Returns a page with links to the API reference. Calls without an owner are of `owner_of_calls`; a name that has none stays text."""
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    entries = {name: path for path, name in _ENTRY.findall(pages)}
    mentioned: set[str] = set()

    def linked(span: re.Match[str]) -> str:
        code = unescape(span["code"] or "")
        if not code or (call := _CALL.fullmatch(code.removeprefix("wal.bridge."))) is None:
            return span[0]
        name, owner = call["name"], call["owner"]
        if code in entries.values():
            path = code
        elif owner:
            path = f"wal.{_OWNERS[owner]}.{name}"
        elif name in entries and (call["call"] or name[0].isupper()):
            path = entries[name]
        elif owner_of_calls and call["call"]:
            path = f"wal.{_OWNERS[owner_of_calls]}.{name}"
        else:
            return span[0]
        if path in mentioned:
            return span[0]
        mentioned.add(path)
        return f'<autoref identifier="{path}" optional>{span[0]}</autoref>'

    return _SPAN.sub(linked, html)


def _places() -> dict[str, str]:
    pictures = {str(path.relative_to(ROOT)): f"project/{path.name}" for path in ROOT.glob("benchmarks/*.svg")}
    return PROJECT | pictures
