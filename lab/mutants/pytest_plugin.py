"""A pytest plugin in the copies of the workspace: it chooses tests, reports outcomes, and says which test runs."""

import json
import mmap
import os
from pathlib import Path

import pytest

SLOTS = 64
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
SETTINGS = json.loads(Path(os.environ["MUTANTS"]).read_text())


def _report(*line):
    if not WORKER:
        with Path(SETTINGS["report"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config):
    rows = json.loads(Path(SETTINGS["rows"]).read_text())
    if rows is not None:
        config.pluginmanager.register(Rows(rows))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if SETTINGS["tests"] is not None:
        tests = set(SETTINGS["tests"])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in tests])
        items[:] = [item for item in items if item.nodeid in tests]


def pytest_collection_finish(session):
    if session.config.option.collectonly:
        tests = [[item.nodeid, item.get_closest_marker("thorough") is not None] for item in session.items]
        Path(SETTINGS["collected"]).write_text(json.dumps(tests))


def pytest_collectreport(report):
    if report.failed:
        _report("broken", report.nodeid.partition("::")[0])


def pytest_runtest_logstart(nodeid):
    _report("start", nodeid)


def pytest_runtest_logreport(report):
    _report("report", report.nodeid, report.when, report.outcome, report.duration)


class Rows:
    """Says in the table of hits which test runs."""

    def __init__(self, tests):
        with Path(SETTINGS["hits"]).open("r+b") as file:
            self.current = memoryview(mmap.mmap(file.fileno(), 4 * SLOTS)).cast("i")
        self.slot = int(WORKER[2:]) + 1 if WORKER else 0
        self.rows = {test: number for number, test in enumerate(tests, 1)}
        self.current[self.slot] = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.current[self.slot] = self.rows.get(item.nodeid, 0)
        try:
            return (yield)
        finally:
            self.current[self.slot] = 0
