"""Found by every process of a test that has this directory on PYTHONPATH: supervisors give a lost store up sooner."""

from flowlite.supervise import leading

leading.DAMAGED_SECONDS = 3.0
leading.REMOVED_SECONDS = 2.0
