"""Diagnoses why a gang hangs or failed: groups stacks, compares nodes, recognises known failures. Pure, without I/O."""
