"""For supervisors that find this on their PYTHONPATH: what is not here is waited for 15 seconds only."""

from flowlite.supervise.attempt import unfetched

unfetched.PATIENCE = 15.0
