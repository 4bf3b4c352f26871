"""Signs a bundle's manifest, which holds the hashes of all its files, with Ed25519 (RFC 8032).

`manifest.sig` is the signature of manifest.json's bytes, in base64. Keys are PEM files, as OpenSSL
reads and writes them.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Any

from packager.bundle import MANIFEST, SIGNATURE
from packager.errors import BundleError, EnvironmentLacks, UsageError


def new_key(path: Path) -> Path:
    """Writes a new private key, for its owner alone, and `NAME.pub` beside it.

    Args:
        path: The private key; it must not exist.

    Returns:
        The path of the public key.

    Raises:
        UsageError: One of the files exists already.
    """
    serialization, ed25519 = _cryptography()
    public_path = path.with_suffix(".pub")
    for each in (path, public_path):
        if each.exists():
            raise UsageError(f"{each} exists", hint="name another file; keys are not replaced")
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    public_path.write_bytes(public)
    return public_path


def sign(folder: Path, key: Path) -> Path:
    """Signs a bundle.

    Args:
        folder: The bundle's folder.
        key: A private key, PEM.

    Returns:
        The path of the signature.

    Raises:
        UsageError: The key cannot be read.
    """
    serialization, ed25519 = _cryptography()
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{key} is no private key without a password: {error}",
            hint="make one: packager sign --new-key key.pem",
        ) from None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{key} is no Ed25519 key", hint="packager sign --new-key key.pem")
    text = base64.b64encode(private.sign((folder / MANIFEST).read_bytes())).decode() + "\n"
    target = folder / SIGNATURE
    waiting = folder / f"{SIGNATURE}.part"
    waiting.write_text(text, encoding="ascii")
    waiting.replace(target)
    return target


def check(folder: Path, key: Path) -> None:
    """Checks that the owner of a key has signed a bundle's manifest.

    The manifest's hashes are another matter: see `hashes.check_files`.

    Args:
        folder: The bundle's folder.
        key: A public key, PEM.

    Raises:
        BundleError: There is no signature, or it is not of this manifest by this key.
        UsageError: The key cannot be read.
    """
    serialization, ed25519 = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        public = serialization.load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{key} is no public key: {error}", hint="packager sign wrote it as NAME.pub"
        ) from None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise UsageError(f"{key} is no Ed25519 key", hint="packager sign --new-key key.pem")
    path = folder / SIGNATURE
    try:
        signature = base64.b64decode(path.read_bytes().strip(), validate=True)
        public.verify(signature, (folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BundleError(
            f"{folder} is not signed: it has no {SIGNATURE}", hint="packager sign BUNDLE --key KEY"
        ) from None
    except (InvalidSignature, binascii.Error):
        raise BundleError(
            f"{path} is no signature of this manifest.json by the owner of {key}",
            hint="take the bundle from where it was signed; do not use this one",
        ) from None


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise EnvironmentLacks(
            "signatures need the package cryptography", hint="pip install 'packager[sign]'"
        ) from None
    return serialization, ed25519
