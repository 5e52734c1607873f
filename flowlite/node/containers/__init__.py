"""Runs the fork server, and so every worker, in a container of docker or podman. The agent stays outside.

The container shares the host's network, processes and IPC.
"""
