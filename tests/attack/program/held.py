"""Its import takes, on a node, until the attack lets it end: so long the node prepares."""

import os
import time

while os.path.exists("/tmp/attack-import"):
    time.sleep(0.02)
