"""Tests on any machine: Ctrl-C also in a shell's background job, properties also where a machine is busy, and no
choice of a backend by its speed."""

import os
import signal

from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

os.environ.setdefault("BACKBAY_TRIAL_SECONDS", "0")  # a test must not depend on which backend is faster
