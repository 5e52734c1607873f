"""How fast and how small, each figure beside a peer measured in the same run: `make bench`."""
