"""S3Server: a real S3 server (versitygw) with one bucket, and the source of its program.

Owns the server's directory and port. Listens on 127.0.0.1 only. Only the soak of backups uses it: building it takes minutes.
"""

from __future__ import annotations

import http.client
from typing import Final

from tests.servers.golang import GoProgram
from tests.servers.process import ServerProcess, free_ports

VERSION: Final = "1.8.0"
ADDRESS_VARIABLE: Final = "WAL_TEST_S3"
BUCKET: Final = "backups"
_KEY, _SECRET = "wal-test-key", "wal-test-secret"
find_s3: Final = GoProgram("versitygw", "github.com/versity/versitygw/cmd/versitygw", VERSION, ADDRESS_VARIABLE).find


class S3Server(ServerProcess):
    """One server on a free port. `environment` is what a client needs to reach it, and `url` its bucket."""

    def __init__(self) -> None:
        self.folder = self._own(None, "s3")
        for name in ("data", "metadata"):
            (self.folder / name).mkdir()
        (self.folder / "data" / BUCKET).mkdir()
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.url = f"s3://{BUCKET}/orders"
        self.client_environment = {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
        }
        flags = ["--access", _KEY, "--secret", _SECRET, "--port", self.address, "--region", "us-east-1", "--quiet"]
        command = [str(find_s3()), *flags, "posix", "--sidecar", str(self.folder / "metadata"), str(self.folder / "data")]
        super().__init__("versitygw", command, log=self.folder / "s3.log", is_ready=lambda: _answers(port))


def _answers(port: int) -> bool:
    """Returns whether the server answers HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status in (200, 403)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
