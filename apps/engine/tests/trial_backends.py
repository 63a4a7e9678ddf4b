"""Backends for trials, which a child process imports by `module:Class`: some of them never give a speed."""

import os
import time

import backbay
from backbay import BackbayError

Reference = backbay.backends()["cpu_ref"].load()


class Steady(Reference):
    name = "steady"


class Hanging(Reference):
    name = "hanging"

    def read_weights(self, progress, cancel):
        time.sleep(600)


class Slow(Reference):
    name = "slow"

    def compile(self, graph):
        plan = super().compile(graph)
        if self.model is not None:
            plan.run = lambda *_, **__: time.sleep(600)
        return plan


class Dying(Reference):
    name = "dying"

    def read_weights(self, progress, cancel):
        os._exit(7)


class Refusing(Reference):
    name = "refusing"

    def read_weights(self, progress, cancel):
        raise BackbayError("no weights\nof this kind")


class Starving(Reference):
    name = "starving"

    def read_weights(self, progress, cancel):
        raise MemoryError
