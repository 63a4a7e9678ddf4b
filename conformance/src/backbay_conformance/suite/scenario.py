"""Scenarios: checks beyond single calls, each a function of a lab and a draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..draw.draw import Draw
from .lab import Lab
from .profiles import check_profile

Run = Callable[[Lab, Draw], None]


@dataclass(frozen=True)
class Scenario:
    """A check of a profile, with its number of runs for each size; it fails by raising Fault or any other error."""

    name: str
    profile: str
    function: Run
    times: dict[str, int]
    timeout: float | None


SCENARIOS: dict[tuple[str, str], Scenario] = {}
"""Every scenario, by profile and name."""

F = TypeVar("F", bound=Run)


def scenario(
    profile: str,
    *,
    tiny: int = 0,
    smoke: int = 1,
    default: int = 4,
    nightly: int = 20,
    timeout: float | None = None,
) -> Callable[[F], F]:
    """Declare a scenario of a profile; `timeout` in seconds, if longer than a call's.

    The quickest scenarios of each profile are also for the size tiny.
    """

    def register(function: F) -> F:
        name = function.__name__
        check_profile(profile, f"scenario {name}")
        if (profile, name) in SCENARIOS:
            raise ValueError(f"two scenarios {name} in profile {profile}")
        times = {"tiny": tiny, "smoke": smoke, "default": default, "nightly": nightly}
        SCENARIOS[profile, name] = Scenario(name, profile, function, times, timeout)
        return function

    return register
