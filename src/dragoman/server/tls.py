"""The certificate that the server shows to clients of TLS, and its replacement while the server runs."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import require_regular


class Certificates:
    """A certificate chain with its private key, read from files.

    ``context`` is for the next handshake; open connections keep theirs. Raises DragomanError for files that cannot be
    used.
    """

    def __init__(self, certificate: str, key: str | None = None, password_file: str | None = None) -> None:
        self._certificate, self._key, self._password_file = certificate, key, password_file
        self._was_asked = False
        """Whether the key was found to be encrypted."""
        self._seen = self._state()
        self.context = self._read()

    def reload_if_changed(self) -> bool:
        """Read the files again if they were written to or replaced. Return whether they were. Raises as ``reload``."""
        before, self._seen = self._seen, self._state()
        if self._seen == before:
            return False
        self.reload()
        return True

    def _state(self) -> object:
        """Return a value that changes when one of the files does."""
        found: list[object] = []
        for file in filter(None, (self._certificate, self._key, self._password_file)):
            try:
                state = os.stat(file)
            except OSError as error:
                found.append(error.errno)
            else:
                found.append((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
        return found

    def reload(self) -> None:
        """Read the files again. Where they cannot be used, raise DragomanError and keep those in use."""
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        files = f"{self._certificate}" + (f" and {self._key}" if self._key else "")
        for file in filter(None, (self._certificate, self._key, self._password_file)):
            try:
                os.stat(file)
            except FileNotFoundError:
                raise DragomanError(f"--tls-cert, --tls-key: there is no file {file}") from None
            except OSError as error:
                raise DragomanError(f"--tls-cert, --tls-key: {file} cannot be read: {error.strerror}") from None
            require_regular(file)
        self._was_asked = False
        try:
            # A function, because OpenSSL would ask for the password on the terminal otherwise.
            context.load_cert_chain(self._certificate, self._key, password=self._password)
        except ssl.SSLError as error:
            reason = self._reason(error)
            raise DragomanError(f"--tls-cert, --tls-key: {files} cannot be used: {reason}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DragomanError(f"--tls-cert, --tls-key: {files} cannot be read: {reason}") from None
        return context

    def _reason(self, error: ssl.SSLError) -> str:
        """Return what is wrong with the files, and what helps."""
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate, which has to be the first one in its file"
        if self._was_asked:
            return f"the key cannot be decrypted with the password in {self._password_file}"
        if error.reason:
            return error.reason
        if self._key is None:
            return "they need a certificate and its key in PEM; where the key is in another file, --tls-key names it"
        return "they need a certificate (BEGIN CERTIFICATE) and its key (BEGIN PRIVATE KEY) in PEM"

    def _password(self) -> str:
        self._was_asked = True
        if self._password_file is None:
            raise ValueError("the key is encrypted: --tls-key-password-file names the file with its password")
        return Path(self._password_file).read_text("utf-8").strip("\r\n")
