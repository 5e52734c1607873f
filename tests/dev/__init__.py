"""`flow dev`."""
