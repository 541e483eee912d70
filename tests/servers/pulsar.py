"""PulsarServer: a real Apache Pulsar (broker, bookie and metadata in one process), and its installation.

Owns: the server's directory, ports and configuration. `find_pulsar` has Maven copy the jars of VERSION into the cache (about a minute,
once). Every port listens on 127.0.0.1 only. With `secured=True` a second port speaks TLS, and every client needs a token. A server that
was killed (kill -9) can be started again on the same directories.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.servers.cache import MissingServerError, installed, say
from tests.servers.process import ServerProcess, free_ports

VERSION: Final = "4.0.7"
"""4.0.8 cannot be installed from Maven Central: one of its dependencies is missing there."""
ADDRESS_VARIABLE: Final = "WAL_TEST_PULSAR"
"""`pulsar://host:port` of a running Pulsar. Tests that kill their server still start their own."""
ADMIN_VARIABLE: Final = "WAL_TEST_PULSAR_ADMIN"
"""`http://host:port` of its admin REST."""
_INSTALL_TIMEOUT_S: Final = 900
_REGISTRATIONS: Final = b"/ledgers/available/"
"""The keys below which a bookie registers itself; they should end with its process."""
_OPENED_PACKAGES: Final = (
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/java.util.zip",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class PulsarServer(ServerProcess):
    """A standalone on free ports: `url` for clients, `admin_url` for REST; `tls_url`, `token` and `authority` when it is `secured`.

    `options` override lines of its configuration. `tuned`: for benchmarks; otherwise the Java virtual machine compiles quickly rather
    than well, which halves the time of a start.
    """

    def __init__(
        self, *, folder: Path | None = None, options: Mapping[str, object] | None = None, secured: bool = False, tuned: bool = False
    ) -> None:
        self.folder = self._own(folder, "pulsar")
        broker, web, bookie, tls = free_ports(4)
        self.url = f"pulsar://127.0.0.1:{broker}"
        self.admin_url = f"http://127.0.0.1:{web}"
        self.tls_url: str | None = None
        self.token: str | None = None
        self.authority: Path | None = None
        configuration: dict[str, object] = {
            "clusterName": "standalone",
            "brokerServicePort": broker,
            "webServicePort": web,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "loadBalancerEnabled": "false",
            # The only bookie stays in use: after errors, such as a kill, the broker would exclude it for half an hour ("not enough
            # non-faulty bookies"), and on a disk that other tests have filled it would accept no more ledgers.
            "bookkeeperClientHealthCheckEnabled": "false",
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.99",
            "numIOThreads": 2,
            "numHttpServerThreads": 8,
        }
        if secured:
            configuration |= self._secure(tls)
        configuration |= options or {}
        self._metadata = self.folder / "meta"
        conf = self.folder / "standalone.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in configuration.items()))
        log4j = self.folder / "log4j2.properties"
        log4j.write_text(_LOG4J)
        temporary = self.folder / "tmp"  # a killed process removes none of its temporary files
        temporary.mkdir(exist_ok=True)
        command = [
            "java", f"-Djava.io.tmpdir={temporary}", "-XX:-UsePerfData",
            "-Xms256m", "-Xmx768m", "-XX:MaxDirectMemorySize=768m", "-XX:+UseSerialGC", *([] if tuned else
            ["-XX:TieredStopAtLevel=1"]), *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
            "-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j.configurationFile=file:{log4j}", "-cp", f"{find_pulsar()}/lib/*",
            "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(conf), "--metadata-dir", str(self._metadata),
            "--bookkeeper-dir", str(self.folder / "bk"), "--bookkeeper-port", str(bookie), "--no-functions-worker",
            "--no-stream-storage",
        ]  # fmt: skip
        super().__init__(
            "pulsar",
            command,
            log=self.folder / "pulsar.log",
            is_ready=lambda: self.admin("GET", "brokers/health", timeout_s=5.0)[1] == b"ok",
            ready_timeout_s=120.0,
        )

    def admin(self, method: str, path: str, body: object = None, *, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Makes a request to the admin REST below /admin/v2/; returns status and body, status 0 without an answer."""
        return admin_request(self.admin_url, method, path, body, token=self.token, timeout_s=timeout_s)

    def start(self) -> None:
        """Starts the server and waits until it answers, as for any server.

        After a kill -9 its bookie is still registered in the metadata. Pulsar 4.0 would replace that registration, and on a busy machine it
        gets the removal only after its own registration; then it replaces this one too, and so on for ever, while it answers and has no
        bookie. So what is registered is removed before.
        """
        if self._metadata.exists():
            _remove_keys(self._metadata, _REGISTRATIONS)
        super().start()

    def _secure(self, port: int) -> dict[str, object]:
        """Creates a self-signed certificate for 127.0.0.1 and a secret for tokens; returns the configuration."""
        certificate, key, secret = (self.folder / name for name in ("broker.pem", "broker-key.pem", "token.key"))
        _run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", str(certificate), "-keyout", str(key)],
            self.folder,
        )  # fmt: skip
        secret.write_bytes(secrets.token_bytes(32))
        self.token = _jwt("admin", secret.read_bytes())
        self.authority = certificate
        self.tls_url = f"pulsar+ssl://127.0.0.1:{port}"
        return {
            "brokerServicePortTls": port,
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
            "tlsTrustCertsFilePath": certificate,
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "tokenSecretKey": f"file://{secret}",
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{self.token}",
        }


def install() -> None:
    """Installs Pulsar if it is missing."""
    find_pulsar()


@contextlib.contextmanager
def started() -> Iterator[dict[str, str]]:
    """Yields the variables that name a running Pulsar: the server of the environment, or a server that runs until the end."""
    if os.environ.get(ADDRESS_VARIABLE):
        yield {name: os.environ[name] for name in (ADDRESS_VARIABLE, ADMIN_VARIABLE) if name in os.environ}
        return
    with PulsarServer(tuned=True) as server:
        yield {ADDRESS_VARIABLE: server.url, ADMIN_VARIABLE: server.admin_url}


def find_pulsar() -> Path:
    """Returns the folder of the installation, with the jars in `lib`, and installs it if missing. MissingServerError without
    Java or Maven."""
    if shutil.which("java") is None:
        raise MissingServerError(
            f"java is missing to run Pulsar: install Java 17, or name a running one in {ADDRESS_VARIABLE} and {ADMIN_VARIABLE}"
        )
    return installed(f"pulsar-{VERSION}", _copy_jars)


def admin_request(
    address: str, method: str, path: str, body: object = None, *, token: str | None = None, timeout_s: float = 30.0
) -> tuple[int, bytes]:
    """Makes a request to an admin REST; returns status and body, status 0 without an answer."""
    request = urllib.request.Request(f"{address}/admin/v2/{path}", method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def _remove_keys(database: Path, prefix: bytes) -> None:
    """Removes the keys with this prefix from a RocksDB that no process has open."""
    from rocksdict import Options, Rdict

    with Rdict(str(database), Options(raw_mode=True)) as opened:
        keys: list[Any] = list(opened.keys(from_key=prefix))
        for key in keys:
            if not key.startswith(prefix):
                break
            del opened[key]


def _copy_jars(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingServerError(
            f"Pulsar's jars come by Maven, and mvn is missing here: install it, or name a running Pulsar in {ADDRESS_VARIABLE} and "
            f"{ADMIN_VARIABLE}"
        )
    say(f"having Maven copy the jars of Pulsar {VERSION}; this takes one or two minutes, once")
    (folder / "pom.xml").write_text(_POM)
    _run([maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/lib", "-DincludeScope=runtime"], folder)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=_INSTALL_TIMEOUT_S, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, env=dict(os.environ),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingServerError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise MissingServerError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def _jwt(subject: str, secret: bytes) -> str:
    """Returns a token for this role: a JSON Web Token, HS256."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    def part(value: dict[str, Any]) -> str:
        return encoded(json.dumps(value, separators=(",", ":")).encode())

    signed = f"{part({'alg': 'HS256'})}.{part({'sub': subject})}"
    return f"{signed}.{encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>pulsar-runtime</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
_LOG4J: Final = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5level [%t] %logger{1.} - %msg%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
