"""`python -m ironflow` is the command `ironflow`, for places where the script is not on PATH."""

import sys

from ironflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
