"""What the tests share: the worst error that was met, told at the end."""

import oracle
import pytest


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist: a worker tells those who told it
        session.config.workeroutput["worst"] = oracle.worst


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    for what, found in getattr(node, "workeroutput", {}).get("worst", {}).items():
        oracle.worst[what] = max(found, oracle.worst.get(what, 0.0))


def pytest_terminal_summary(terminalreporter):
    if oracle.worst:
        what, found = max(oracle.worst.items(), key=lambda item: item[1])
        terminalreporter.write_line(f"worst error met: {found:.2f} of the tolerance ({what})")
