"""Where a certificate is, for both ports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tls:
    """Files of a certificate; `custom_ca` is that of the clients, if they need one."""

    server_key: str
    server_cert: str
    custom_ca: str = ""
    client_verify: bool = False
