"""A certificate for both ports."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tls:
    """The texts of TensorFlow Serving's `SSLConfig`, in PEM form.

    Attributes:
        server_key: The private key.
        server_cert: The certificate chain.
        custom_ca: The authorities of the clients' certificates.
        client_verify: Whether clients need a certificate.
    """

    server_key: str
    server_cert: str
    custom_ca: str = ""
    client_verify: bool = False

    def as_files(self, folder: Path) -> dict[str, Path]:
        """Writes the texts to `folder`, which must be private; returns the files by field."""
        fields = ("server_key", "server_cert", "custom_ca")
        texts = {name: getattr(self, name) for name in fields}
        found = {name: folder / f"{name}.pem" for name, text in texts.items() if text}
        for name, path in found.items():
            path.write_text(texts[name], encoding="utf-8")
        return found


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder that only this user can read, deleted with the object."""
    return tempfile.TemporaryDirectory(prefix="packager-server-")
