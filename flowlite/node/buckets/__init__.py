"""Buckets at a path: a sidecar runs mount-s3 or rclone below a directory of ours and watches the mounts.

Whatever mounts, serves or copies is a sidecar: a process that the agent starts and whose pipe it holds. It ends with
the agent however that ends, and takes its mounts along. Credentials stay in `storage.json` (0600) and in the sidecar.
"""
