"""Buckets mounted at a path: a sidecar runs mount-s3 or rclone in a private directory and watches the mounts.

Every process that mounts, serves or copies is a sidecar. The agent starts it and holds its pipe; it ends with the
agent, for any reason, and removes its mounts. Credentials are only in `storage.json` (0600) and in the sidecar.
"""
