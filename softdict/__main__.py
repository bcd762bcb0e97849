"""Run the command line: ``python -m softdict``."""

from softdict.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
