"""Backends are opened with the options that were asked for, and with those of the scenario."""

import pytest

import backbay
from backbay import Option, OptionError
from backbay_conformance import lab_for


def test_options_of_a_run_do_not_hide_those_of_a_scenario() -> None:
    reference = backbay.backends()["cpu_ref"].load()
    kind = type(
        "Tuned", (reference,), {"options": {**reference.options, "speed": Option(1, int, "how fast")}}
    )
    lab = lab_for(kind, {"speed": 2})
    with lab.fresh() as backend:
        assert backend.option_values["speed"] == 2
    with lab.fresh(options={"speed": 3}) as backend:
        assert backend.option_values["speed"] == 3
    with pytest.raises(OptionError):
        lab.fresh(options={"no_such_option": 1})
