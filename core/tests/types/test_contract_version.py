"""The contract's version: additions break no plugin."""

import pytest

import backbay
from backbay import CONTRACT_VERSION, ContractVersion, KernelBackend


@pytest.mark.parametrize(
    ("stated", "version"),
    [(1, (1, 0)), ("1.0", (1, 0)), ("1.12", (1, 12)), ((2, 3), (2, 3)), ([0, 1], (0, 1))],
)
def test_a_version_is_stated_in_several_ways(stated, version):
    assert ContractVersion.parse(stated) == version


@pytest.mark.parametrize(
    "stated",
    [
        1.1,
        True,
        None,
        -1,
        "1",
        "one.two",
        (1,),
        (1, 2, 3),
        "",
        "1.2.3",
        "1.-1",
        " 1.1",
        "1.1\n",
        (1.9, 1),
        (True, True),
        b"\1\1",
        {1: 0, 2: 0},
    ],
)
def test_what_is_no_version_is_refused(stated):
    with pytest.raises(ValueError, match="a contract version is two numbers"):
        ContractVersion.parse(stated)


@pytest.mark.parametrize("minor", range(CONTRACT_VERSION.minor + 1))
def test_plugins_of_every_earlier_minor_version_are_taken(minor):
    kind = type("Plain", (KernelBackend,), {"contract_version": f"{CONTRACT_VERSION.major}.{minor}"})
    backbay.open(backend=kind).close()
