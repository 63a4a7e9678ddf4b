"""Arguments that cannot cancel or show progress are refused before anything runs."""

import pytest

import backbay
from backbay import OptionError


@pytest.fixture
def backend():
    with backbay.open(None, "cpu_ref") as opened:
        yield opened


@pytest.mark.parametrize("cancel", [5, "now", object(), True])
def test_a_cancel_is_a_flag(backend, cancel):
    with backend.new_context() as ctx:
        y = ctx.from_floats([1.0]).neg(ctx)
        with pytest.raises(OptionError, match="cancel must have a method is_set"):
            ctx.compute(y, cancel=cancel)
        ctx.compute(y)
    with pytest.raises(OptionError, match="cancel must have a method is_set"):
        backend.load(cancel=cancel)


@pytest.mark.parametrize("progress", [5, "bar", []])
def test_a_progress_is_a_function(backend, progress):
    with pytest.raises(OptionError, match="progress must be a function of one number"):
        backend.load(progress=progress)
