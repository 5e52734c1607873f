"""The same with a pickle of protocol 5 in a file and a second interpreter that reads or writes it."""

import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

TAKE = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    array = pickle.load(file)
with open(sys.argv[2], "wb") as file:
    pickle.dump(float(array.sum()), file, protocol=5)
"""
GIVE = """
import pickle, sys
import numpy as np
with open(sys.argv[1], "rb") as file:
    count = pickle.load(file)
with open(sys.argv[2], "wb") as file:
    pickle.dump(np.ones(count), file, protocol=5)
"""

if __name__ == "__main__":
    way, count = sys.argv[2], int(sys.argv[3])
    argument, result = Path("argument.pkl"), Path("result.pkl")
    value = np.ones(count) if way == "argument" else count
    start = time.monotonic()
    with open(argument, "wb") as file:
        pickle.dump(value, file, protocol=5)
    code = TAKE if way == "argument" else GIVE
    subprocess.run([sys.executable, "-c", code, str(argument), str(result)], check=True)
    with open(result, "rb") as file:
        back = pickle.load(file)
    assert back == count if way == "argument" else back.sum() == count
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
