"""Addresses of pictures: which the server may fetch, and which machines it may connect to."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple, TypeAlias, final
from urllib.parse import urlsplit

from backbay import OptionError

from ..errors import InvalidRequestError

IP: TypeAlias = IPv4Address | IPv6Address
ANY: Final = "*"
LONGEST: Final = 4096  # characters
_PORTS: Final = {"http": 80, "https": 443}
_MORE: Final = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("fec0::/10"))


class PictureUrl(NamedTuple):
    """An http or https URL in its parts."""

    scheme: str
    host: str
    port: int
    target: str  # path and query

    @property
    def named_host(self) -> str:
        """The host as the header Host has it."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _PORTS[self.scheme] else f"{shown}:{self.port}"


@final
class AllowedHosts:
    """The hosts from which pictures may be fetched: NAME, NAME:PORT, *.NAME for the names below it, or * for all.

    A name without a port stands for the ports of http and https.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._entries = frozenset(_entry(name) for name in names)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def checked(self, url: str) -> PictureUrl:
        """The parts of an address; InvalidRequestError if nothing may be fetched from it."""
        found = _parsed(url)
        if not any(self._names(found, host, port) for host, port in self._entries):
            raise InvalidRequestError(f"no pictures are fetched from the host {found.host!r}")
        return found

    @staticmethod
    def _names(address: PictureUrl, host: str, port: int | None) -> bool:
        if address.port != (_PORTS[address.scheme] if port is None else port):
            return False
        below = host.startswith("*.") and address.host.endswith(host[1:])
        return below or host in (ANY, address.host)


def is_public(ip: IP) -> bool:
    """Whether an address is one of the public internet, in every way in which it can be read."""
    if isinstance(ip, IPv6Address):
        inside = [ip.sixtofour, *(ip.teredo or ())]  # other forms of IPv4 addresses are reserved
        if not all(is_public(each) for each in inside if each is not None):
            return False
    if any(ip in network for network in _MORE if network.version == ip.version):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def parse_ip(text: str) -> IP:
    """An address as the resolver gives it, which may have a zone."""
    return ip_address(text.partition("%")[0])


def _parsed(url: str) -> PictureUrl:
    wrong = f"the address of a picture must be http(s)://HOST/PATH, of at most {LONGEST} letters"
    if len(url) > LONGEST or not url.isascii() or any(letter <= " " or letter in "\\\x7f" for letter in url):
        raise InvalidRequestError(f"{wrong}, in ASCII without spaces and backslashes")
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:  # brackets without an IPv6 address, or a port that is no number
        raise InvalidRequestError(wrong) from None
    if scheme not in _PORTS or not host or "%" in host or port == 0:
        raise InvalidRequestError(wrong)
    if "@" in parts.netloc:
        raise InvalidRequestError("the address of a picture must have no user or password")
    query = f"?{parts.query}" if parts.query else ""
    return PictureUrl(scheme, host.rstrip("."), port or _PORTS[scheme], (parts.path or "/") + query)


def _entry(text: str) -> tuple[str, int | None]:
    name, colon, port = text.lower().rpartition(":") if text.count(":") == 1 else (text.lower(), "", "")
    host = name.strip("[]").rstrip(".")
    wrong = "/" in host or (host != ANY and ANY in host.removeprefix("*."))
    if not host or wrong or (colon and not port.isdigit()):
        raise OptionError(f"--allow-picture-host takes NAME, NAME:PORT, *.NAME or *, got {text!r}")
    return host, int(port) if colon else None
