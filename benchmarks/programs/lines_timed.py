"""Writes numbered lines at an even pace, each with the time of day it was written at."""

import sys
import time

duration, per_second = int(sys.argv[1]), int(sys.argv[2])
began = time.monotonic()
for number in range(duration * per_second):
    ahead = began + number / per_second - time.monotonic()
    if ahead > 0.002:
        time.sleep(ahead)
    sys.stdout.write(f"{number} {time.time()}\n")
    sys.stdout.flush()
