"""For clients and supervisors that find this on their PYTHONPATH: a place is left sooner, and asked again sooner.

Planning waits for all providers, since one that is left out because this machine is busy would change the test.
"""

from flowlite.api.candidates import planning
from flowlite.supervise import failover

failover.QUEUE_SECONDS = 8.0
failover.FULL_SECONDS = 5.0
planning.ANSWER_SECONDS = 90.0
