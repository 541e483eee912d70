"""The long description of the distribution: README.md without links and pictures that only a clone has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text()
        text = re.sub(r"^!\[[^\]]*\]\((?!https:)[^)]*\)\n+", "", text, flags=re.MULTILINE)
        text = re.sub(r"\[([^\]]+)\]\((?!https:|#)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
