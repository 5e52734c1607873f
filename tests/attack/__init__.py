"""Faults drawn at random against a gang on test hosts, and what must hold whatever they were (docs/reliability.md)."""
