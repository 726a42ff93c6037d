"""Certificates of TLS, made by openssl."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates")


def certificate(folder: Path, name: str = "localhost", password: str = "") -> tuple[Path, Path]:
    """Make a certificate that signs itself, and its key, in files of a folder."""
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    command += ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def shown_certificate(port: int) -> str:
    """The certificate that a server at a port shows, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port))
