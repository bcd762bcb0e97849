"""What the tests share: the worst error that was met, told at the end."""

import oracle


def pytest_terminal_summary(terminalreporter):
    if oracle.worst:
        what, found = max(oracle.worst.items(), key=lambda item: item[1])
        terminalreporter.write_line(f"worst error met: {found:.2f} of the tolerance ({what})")
