"""Work on a node for one client over one channel: put files, start agents, run commands, open streams.

The courier (courier.py) serves SSH: the first of several small requests starts it on a channel that stays open. An
agent is forked from it and looks from outside as if it had been started. It ends with its channel, and after 45 s
without a heartbeat of its client. Nothing depends on it: a client that finds it busy or gone uses a command of its
own.

The mux server (mux_server.py, subcommand `porter`) serves nodes that are reached through one command, such as `srun
--overlap`: many streams side by side over one pipe, since each further `srun` would be a step of the job.
"""
