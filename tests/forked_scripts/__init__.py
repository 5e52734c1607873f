"""Scripts that run in processes forked from the fork server, beside the same scripts in a Python of their own."""
