"""The same eight processes writing to files, and `cat` reading them; notes the seconds of all that."""

import subprocess
import sys
import time
from pathlib import Path

WRITE = """
import sys
lines, width = int(sys.argv[1]), int(sys.argv[2])
filler = "x" * (width - 12)
for number in range(lines):
    sys.stdout.write(f"{number:010} {filler}\\n")
"""

if __name__ == "__main__":
    start = time.monotonic()
    writers = []
    for rank in range(8):
        with open(f"{rank}.out", "wb") as file:
            command = [sys.executable, "-c", WRITE, sys.argv[2], sys.argv[3]]
            writers.append(subprocess.Popen(command, stdout=file))
    if any(writer.wait() for writer in writers):
        sys.exit("a writer failed")
    names = [f"{rank}.out" for rank in range(8)]
    subprocess.run(["cat", *names], stdout=subprocess.DEVNULL, check=True)
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
