"""Addresses of pictures: which are allowed, and which machines are public."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from backbay import OptionError
from backbay_server.errors import InvalidRequestError
from backbay_server.pictures.addresses import AllowedHosts, PictureUrl, is_public


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://pictures.test/a.png", PictureUrl("http", "pictures.test", 80, "/a.png")),
        ("HTTPS://Pictures.Test./a?b=c#d", PictureUrl("https", "pictures.test", 443, "/a?b=c")),
        ("https://cdn.example.test", PictureUrl("https", "cdn.example.test", 443, "/")),
        ("http://local.test:8000/", PictureUrl("http", "local.test", 8000, "/")),
        ("http://[2001:db8::1]/x", PictureUrl("http", "2001:db8::1", 80, "/x")),
    ],
)
def test_allowed_hosts_are_taken(url: str, address: PictureUrl) -> None:
    allowed = AllowedHosts(["pictures.test", "*.example.test", "local.test:8000", "2001:db8::1"])
    assert allowed.checked(url) == address


@pytest.mark.fault(
    "a picture's address names another host, or is written to deceive", "400, nothing is connected to"
)
@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/",
        "http://example.test/",
        "http://evilexample.test/",
        "http://pictures.test.evil.com/",
        "http://evil.com/pictures.test",
        "http://pictures.test@evil.com/",
        "http://pictures.test:80@evil.com/",
        "http://pictures.test:8080/",
        "http://local.test/",
        "http://pictures.test\\@evil.com/",
        "http://pictures.test\r\nHost: evil.com/",
        "http://pictures.test/a b",
        "http://pictures.t\u0435st/",
        "http://pictures.test%00.evil.com/",
        "http://[::1%25lo]/",
        "http://[pictures.test]/",
        "http://pictures.test:99999/",
        "http://pictures.test:0/",
        "http:///a",
        "http:pictures.test",
        "//pictures.test/",
        "ftp://pictures.test/",
        "file:///etc/passwd",
        "gopher://pictures.test/_GET",
        "http://pictures.test/" + "a" * 5000,
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        AllowedHosts(["pictures.test", "*.example.test", "local.test:8000"]).checked(url)


@pytest.mark.parametrize("name", ["", "http://a.test", "a.test:x", "a*.test", "*.*.test", "a.test/b"])
def test_a_name_that_cannot_be_a_host_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="--allow-picture-host"):
        AllowedHosts([name])


def test_all_hosts_can_be_allowed() -> None:
    assert AllowedHosts(["*"]).checked("http://any.test/").host == "any.test"
    with pytest.raises(InvalidRequestError):
        AllowedHosts(["*"]).checked("http://any.test:22/")


@pytest.mark.parametrize("ip", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2002:101:101::1"])
def test_public_addresses(ip: str) -> None:
    assert is_public(ip_address(ip))


@pytest.mark.parametrize(
    "ip",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "192.0.0.8", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "2002:a00:1::1", "2001:0:a00:1::1"),
    ],
)
def test_addresses_of_other_networks_are_not_public(ip: str) -> None:
    assert not is_public(ip_address(ip))
