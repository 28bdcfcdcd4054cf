"""What `python -m bench.tied WORD…` does is what `ironflow WORD…` does, except that it never outlives the bench.

A bench that is killed ends nothing in order, and a server that it leaves behind spoils whatever is measured next. So
the kernel is asked to kill this process with the one that started it, even while it is frozen. (On Linux; elsewhere
the bench has to end in order.)
"""

from __future__ import annotations

import ctypes
import signal
import sys

from ironflow.cli.main import main

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.exit(main())
