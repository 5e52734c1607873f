"""EC2 in a box: moto's API with real machines, and with features that moto lacks (`docs/cloud-in-a-box.md`)."""
