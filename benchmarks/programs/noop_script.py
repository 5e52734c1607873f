"""A script that does nothing, for torchx."""
