"""A backend that dies while it loads, if the environment names a signal; a worker imports it."""

import os
import signal

import backbay
from backbay.plugin import check_cancel

VARIABLE = "DIES_OF"


class Dying(backbay.backends()["cpu_ref"].load()):
    name = "dying"

    def read_weights(self, progress, cancel):
        if os.environ.get(VARIABLE):
            os.kill(os.getpid(), getattr(signal, os.environ[VARIABLE]))
        super().read_weights(progress, cancel)


class Slow(backbay.backends()["cpu_ref"].load()):
    name = "slow"

    def read_weights(self, progress, cancel):
        progress(0.5)
        cancel.wait(300)
        check_cancel(cancel)
        super().read_weights(progress, cancel)


class Stopping(backbay.backends()["cpu_ref"].load()):
    name = "stopping"

    def read_weights(self, progress, cancel):
        progress(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)
