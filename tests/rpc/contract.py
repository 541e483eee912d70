"""The messages of the protocol's contract, built from its text as it came: streaming.proto.txt.

The text is one line, so that its comments have no end, and it lost the brackets of its map. It is restored here, compiled by protoc, and
loaded into a pool of its own. None of the project's own .proto files has a part in it, but for the messages of milvus.proto, which the text
imports and does not have.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from google.protobuf.message import Message

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = Path(__file__).with_name("streaming.proto.txt")
PACKAGE: Final = "milvus.proto.streaming"

DECLARATION: Final = "|".join(
    (
        "//",
        r"(?:message|enum|service|oneof) \w+ \{",
        r"rpc \w+\([\w. ]+\) returns",
        r"\}",
        r"(?:repeated )?[\w.]*\w [a-z]\w* = \d+;",
        r"[A-Z_]+ = \d+;",
        "$",
    )
)
"""The beginning of the next declaration. It ends a comment, because the text has no line breaks."""


def restored() -> str:
    """Returns the text without comments, and with the brackets of its map."""
    text = re.sub(rf"//.*?(?={DECLARATION})", "", TEXT.read_text())
    return text.replace("map properties", "map<string, string> properties")


class Contract:
    """The contract, compiled in this folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "streaming.proto").write_text(restored())
        component = (ROOT / "wal/rpc/api/component.proto").read_text()
        (folder / "milvus.proto").write_text(component.replace("package wal.rpc;", "package milvus.proto.milvus;"))
        compiled = folder / "contract.bin"
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{folder}",
            f"--descriptor_set_out={compiled}",
            "streaming.proto",
            "milvus.proto",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
        self.pool = descriptor_pool.DescriptorPool()
        self.pool.AddSerializedFile(empty_pb2.DESCRIPTOR.serialized_pb)
        for file in sorted(files, key=lambda file: file.name):  # milvus.proto comes first
            self.pool.Add(file)

    @property
    def file(self) -> FileDescriptor:
        return self.pool.FindFileByName("streaming.proto")

    def messages(self) -> dict[str, Descriptor]:
        """Returns the messages of Milvus' protocol and of what it imports of milvus.proto."""
        imported = self.pool.FindFileByName("milvus.proto").message_types_by_name
        return {**self.file.message_types_by_name, **imported}

    def enums(self) -> dict[str, EnumDescriptor]:
        return dict(self.file.enum_types_by_name)

    def kind(self, name: str) -> type[Message]:
        """Returns the class of a message."""
        return message_factory.GetMessageClass(self.messages()[name])
