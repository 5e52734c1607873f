"""Found by every process of a test that has this directory on PYTHONPATH: supervisors give a lost store up sooner."""

from flowlite.supervise.process import task_lease

task_lease.DAMAGED_SECONDS = 3.0
task_lease.REMOVED_SECONDS = 2.0
