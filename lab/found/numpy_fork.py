"""A fork in the midst of another thread's matrix product never returns: before a fork, OpenBLAS stops its
threads, for which the product waits, and the fork waits for the product.

project: NumPy
needs: two cores
timing: the fork falls into a product, while both cores are free
effect: a server that computes in one thread and starts processes in another one hangs
workaround: core/src/backbay/backend/helper_processes.py: class ForkLock
thread: none found
shown: 2.4.6
right: none
"""

import os
import signal
import subprocess
import sys
import threading

import numpy as np


def attempt() -> None:
    left, right = np.ones((256, 2048), np.float32), np.ones((2048, 256), np.float32)

    def multiply() -> None:
        while True:
            left @ right

    threading.Thread(target=multiply, daemon=True).start()
    for _ in range(1000):
        signal.alarm(10)  # ends the process if the fork takes longer
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    os._exit(0)


if sys.argv[1:]:
    attempt()
if (os.cpu_count() or 1) < 2 or os.environ.get("OPENBLAS_NUM_THREADS") == "1":
    print("a second core, or a second thread of OpenBLAS, is missing")
    sys.exit(77)
print("NumPy", np.__version__)
print("expected 1,000 forks")
for _ in range(8):  # a process in two is lucky
    child = subprocess.run([sys.executable, __file__, "child"], check=False)
    if child.returncode:
        break
print("came    ", "1,000 forks" if child.returncode == 0 else "one that took longer than 10 s")
sys.exit(0 if child.returncode == -signal.SIGALRM else 1)
