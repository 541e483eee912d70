"""RefusingStore: an HTTP server that answers every request as S3 answers one that it refuses."""

from __future__ import annotations

import http.server
import threading
from typing import Final


class RefusingStore:
    """The server, on loopback, while its block runs. `client_environment` is what a client needs to reach it."""

    secret: Final = "secret-that-no-error-shows"

    def __init__(self, status: int, code: str) -> None:
        body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>No.</Message></Error>'.encode()

        class Refusing(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.client_environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def __enter__(self) -> RefusingStore:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
