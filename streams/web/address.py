"""Listening address of a dashboard or worker."""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from tidewheel.streams.errors import ConfigError
from tidewheel.streams.group.key_metadata import HostInfo

_IPV6: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Numeric address; port 0 selects a free one."""

    host: str
    port: int

    @classmethod
    def found(cls, host: str, port: int, *, option: str = "--host ") -> "Address":
        """Return the first address of a host, IPv4 before IPv6; raise `ConfigError`."""
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"{option}{host}: no such address ({error}); give one of this machine, such as 127.0.0.1"
            ) from error
        addresses = [str(row[4][0]) for row in rows]
        return cls(host=min(addresses, key=lambda each: ":" in each), port=port)

    @property
    def is_loopback(self) -> bool:
        """Return true if only this machine can reach it.

        >>> [Address(host=each, port=0).is_loopback for each in ("127.0.0.1", "::1", "0.0.0.0", "192.0.2.7")]
        [True, True, False, False]
        """
        return self._ip.is_loopback

    def listen(self) -> socket.socket:
        family = socket.AF_INET6 if self._ip.version == _IPV6 else socket.AF_INET
        return socket.create_server((self.host, self.port), family=family)

    def url(self, port: int) -> str:
        """Return the URL for a local browser, with the bound port.

        >>> Address(host="0.0.0.0", port=0).url(8080), Address(host="::1", port=0).url(8080)
        ('http://127.0.0.1:8080/', 'http://[::1]:8080/')
        """
        host = self.host
        if self._ip.is_unspecified:
            host = "::1" if self._ip.version == _IPV6 else "127.0.0.1"
        return f"http://{HostInfo(host, port)}/"

    @property
    def is_unspecified(self) -> bool:
        return self._ip.is_unspecified

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(self.host)
