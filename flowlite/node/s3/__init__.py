"""Signed requests to S3 by a node, with the node's own credential or the task's.

Nodes have no botocore. `sigv4.py` signs, as pure functions. `client.py` has `Store`: one bucket with its endpoint and
credential, read from `storage.json` of the node, and its small requests. `bounded_xml.py` bounds the answers, also
those that botocore parses on the submitting machine. `multipart_upload.py` uploads large objects, and continues after
an interruption. `node_credential.py` finds what the node itself has: variables, `~/.aws`, the role of a container or
a machine. `readable.py` tries whether a bucket can be read before anything is mounted, and explains why not.

Every call blocks, and https needs a process that has ssl, which an agent has not: sidecars use this room
(`node/buckets/`, `node/checkpoints/`). On the submitting machine, `api/volume_files/` uses it for `flow volumes`.

Imports only the standard library. Start with `client.py`. Where the credentials of a task come from is in
`flowlite/bucket_credentials.py`.
"""
