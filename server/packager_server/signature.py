"""Checks the signature of a bundle's manifest: manifest.sig, Ed25519, base64."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from packager_server.codes import Code, ServeError
from packager_server.reader import EngineError


def load_key(path: Path) -> Any:
    """Returns the public key in a PEM file.

    Raises:
        EngineError: It cannot be read, is of another kind, or `cryptography` is missing.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise EngineError(
            "--signature_key needs the package cryptography",
            hint="pip install 'packager[sign]'",
            exit_code=4,
        ) from None
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        message = f"--signature_key: {path} is no public key: {error}"
        raise EngineError(message, exit_code=2) from None
    if not isinstance(key, Ed25519PublicKey):
        raise EngineError(f"--signature_key: {path} is no Ed25519 key", exit_code=2)
    return key


def check(folder: Path, key: Any) -> None:
    """Checks that the owner of the key has signed the manifest.

    Raises:
        ServeError: There is no manifest or signature, or it is of another manifest or key.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        manifest = (folder / "manifest.json").read_bytes()
        signature = base64.b64decode((folder / "manifest.sig").read_bytes().strip(), validate=True)
        key.verify(signature, manifest)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise ServeError(
            f"{folder}: it has no {name}, and --signature_key asks for a signed bundle",
            Code.FAILED_PRECONDITION,
        ) from None
    except (InvalidSignature, binascii.Error, OSError):
        raise ServeError(
            f"{folder}: manifest.sig is no signature of this manifest.json by --signature_key",
            Code.FAILED_PRECONDITION,
        ) from None
