"""TLS files for the tests of servers, made by openssl."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates an authority, certificates of 127.0.0.1, of a client and of a host elsewhere, and one of a client of another authority."""
    openssl = shutil.which("openssl")
    if openssl is None:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test, and openssl, which makes its certificates, is not installed")
        pytest.skip("openssl makes the certificates of this test: install it")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for authority in ("ca", "other-ca"):
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.pem")
        run("req", "-x509", *new_key, *files, "-subj", f"/CN={authority}", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    (folder / "other-names").write_text("subjectAltName=DNS:elsewhere.example\n")
    for name, authority in (("server", "ca"), ("client", "ca"), ("elsewhere", "ca"), ("stranger", "other-ca")):
        run("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
        run(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            *signer,
            "-out",
            f"{name}.pem",
            "-days",
            "2",
            "-extfile",
            "other-names" if name == "elsewhere" else "names",
        )
    return folder
