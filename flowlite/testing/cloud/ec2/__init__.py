"""EC2 in a box: moto's API on top of real machines, with what moto leaves out (`docs/cloud-in-a-box.md`)."""
