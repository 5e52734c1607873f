"""The configuration of an agent (`agent.json`), the paths of an attempt, ranks, and time limits that several sides use.

`agent_config.py` has `AgentConfig`, all that an agent knows of its task before it joins, and `AttemptPaths`.
`ranks.py` is the only place where ranks are assigned. `fencing.py` says when the workers of a node that nobody
reaches have certainly stopped. `python_command.py` and `launcher_programs.py` read command lines. The home of a
node:

    agent.pyz  call.bin  source-<sha256>.zip  source-<sha256>/
    project/  project.json                            the working directory of the task, and its manifest
    secrets.json  storage.json  packages.json         0600: variables; credentials of buckets, of package indexes
    setup.json  checkpoint/  checkpoint.json
    a<attempt>/agent.json  secret  leader.json  agent.pid  agent.log  env.json  report.json  trace.json
    a<attempt>/r<rank>.out  .err  .result  .pid  .stacks     and r<first rank>.setup
    a<attempt>/buckets/  shared/  checkpoints.json  stop

Supervisor and clients import this room, too. It imports nothing but the standard library. Start with `ranks.py`.
"""
