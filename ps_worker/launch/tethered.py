"""Run a command that ends with the process that started it: `python tethered.py PARENT COMMAND...`, PARENT being that process's id.

Linux's PR_SET_PDEATHSIG makes the kernel kill this process when PARENT dies, however that dies. It stays in force across the exec, so
nothing in the command can be in its way: no ignored signal, and no C call that holds the interpreter, where a thread that watches the
parent would never get its turn. The kernel watches the *thread* that started us: the supervisor starts all workers from its main thread,
which lives as long as it does. It holds for the command's own process. What that starts is ended by the supervisor, or, where the
supervisor was killed, has to notice by itself, as a DataLoader's children do.

Run by path and with `-I -S`, this imports nothing of ours and takes milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, command: list[str]) -> None:
    """Become `command`, unless the parent is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("The process that started this worker is gone.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores Ctrl-C, and a worker would inherit that
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
