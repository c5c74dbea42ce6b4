"""User and password for an index: from its address, else from ~/.netrc; sent to that origin only, and never shown."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote, urlsplit, urlunsplit

_PORTS = {"http": 80, "https": 443}


class Logins:
    """Remembers the credentials of addresses, by origin (scheme, host, port)."""

    def __init__(self) -> None:
        """Know nobody yet."""
        self._known: dict[tuple[str, str, int | None], str] = {}

    def remember(self, url: str) -> str:
        """Return the address without user and password, which are kept for its origin."""
        if header := from_address(url):
            self._known[_origin(url)] = header
        return shown(url)

    def header(self, url: str) -> str:
        """Return the value of the Authorization header for this address, "" for none."""
        return from_address(url) or self._known.get(_origin(url)) or _from_netrc(urlsplit(url).hostname or "")


def shown(url: str) -> str:
    """Return the url without user, password and fragment: what goes into a message, and over the wire."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def from_address(url: str) -> str:
    """Return the Basic credentials that the address itself holds, "" for none."""
    parts = urlsplit(url)
    return _basic(unquote(parts.username), unquote(parts.password or "")) if parts.username else ""


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def _from_netrc(host: str) -> str:
    """Return the credentials that NETRC or ~/.netrc has for the host; a file that cannot be read has none."""
    import netrc
    import os

    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return ""
    return _basic(found[0], found[2] or "") if found is not None else ""


def _basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
