"""Signed requests to S3 by a node, with the node's own credential or the task's."""
