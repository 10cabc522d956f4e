"""Access checks and security headers of the dashboard and of workers' HTTP servers.

Other sites' pages can send requests here, also under their own name (DNS rebinding). So the Host
name must be known, cross-site requests are refused, and no cookie holds the token.
"""

import hashlib
import ipaddress
import secrets
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidewheel.streams.web.json_response import problem

#: `Sec-Fetch-Site` values of the dashboard's own page and of typed addresses.
_SAME_SITE: Final = frozenset({"same-origin", "none"})

#: Headers of each response: the browser loads local resources only, and refuses framing and markup
#: made from text.
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Access control around an ASGI application; with a token, all other paths require it.

    Args:
        names: Accepted Host names besides numeric addresses; None accepts all, which is safe only
            with a token: a page of another site does not know it.
        open_paths: Paths without a token.
        advice: Next step in the refusal of a Host name.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        names: Iterable[str] | None = (),
        token: str | None = None,
        open_paths: Iterable[str] = (),
        advice: str = "use its address",
    ) -> None:
        self._app = app
        self._names = None if names is None else frozenset({"localhost", *map(_plain, names)})
        self._open_paths = frozenset(open_paths)
        self._advice = advice
        self._token = None if token is None else _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if not self._is_known(headers.getlist("host")):
            return problem(
                421, f"This server does not answer to the name it was asked by: {self._advice}."
            )
        if _is_of_another_site(headers):
            return problem(403, "Another site asked for this.")
        if path not in self._open_paths and not self._has_token(headers.getlist("authorization")):
            return problem(
                401, "Show the token: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
            )
        return None

    def _is_known(self, hosts: list[str]) -> bool:
        """Return true for an allowed Host header; DNS can't rebind numeric addresses."""
        if len(hosts) != 1:
            return False
        name = host_name(hosts[0])
        if self._names is None:
            return bool(name)
        return name in self._names or _is_address(name)

    def _has_token(self, shown: list[str]) -> bool:
        if self._token is None:
            return True
        scheme, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        # Digests: timing reveals no length.
        fits = secrets.compare_digest(
            _digest(token.strip().encode("latin-1", "replace")), self._token
        )
        return fits and scheme.lower() == "bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def host_name(host: str) -> str:
    """Return the name or address in a Host header without its port; "" if malformed.

    >>> [host_name(each) for each in ("Shop.example:8080", "127.0.0.1", "[::1]:8080", "::1", "")]
    ['shop.example', '127.0.0.1', '::1', '', '']
    """
    if host.startswith("["):
        inside, closed, port = host[1:].partition("]")
        return inside.lower() if closed and _is_port(port) else ""
    name, colon, port = host.partition(":")
    return _plain(name) if _is_port(colon + port) else ""


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_port(text: str) -> bool:
    return not text or (text.startswith(":") and text[1:].isdecimal())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_of_another_site(headers: Headers) -> bool:
    # Links to the page are harmless.
    site = headers.get("sec-fetch-site", "none")
    return site not in _SAME_SITE and headers.get("sec-fetch-mode") != "navigate"
