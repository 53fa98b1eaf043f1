"""Runs a command that ends when its parent ends, even if the parent is killed.

One job, done by a process of its own before it becomes the command: asking the kernel from the launcher would need code
between fork and exec, which is not safe beside gRPC's threads. Run as a file
(`python -I -S guard.py PARENT COMMAND...`), it imports almost nothing and costs a few milliseconds.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Take `PARENT COMMAND...` from the arguments and become COMMAND."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the kernel was asked.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
