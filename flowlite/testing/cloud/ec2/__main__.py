"""The process of the EC2 API: `python -m flowlite.testing.cloud.ec2 DIRECTORY`."""

from __future__ import annotations

import os

from flowlite.testing.cloud.serving import serve

# moto reads these variables when it is imported.
os.environ["MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION"] = "1"
os.environ["MOTO_ENABLE_AMI_VALIDATION"] = "1"
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

if __name__ == "__main__":
    from flowlite.testing.cloud.ec2.service import Ec2Service

    serve("aws", Ec2Service)
