"""One attempt: agents on every node, the gang followed to its end, everything it wrote brought home.

What follows when a node does not answer is one table (node_verdict.py): lost needs two sources. Where nothing at all
answers from here, our own network is gone, and nothing is decided. There is one patience, 25 s, for every node and
phase, and a last look over a new connection before it ends. A replacement for a node that nobody can reach starts
only when that node has certainly stopped its workers (`node/config/fencing.py`), so two processes of one rank never
run.

A node's directory is removed only when all that it holds is here. What each node holds follows from the final sizes,
and what follows from that is one pure function (unfetched.py):

    | what is missing is on a node that    | every rank ended well | otherwise                    |
    | does not exist any more              | lost                  | lost                         |
    | cannot be reached                    | waited for            | not waited for, kept there   |
    | answers, or is passed on by others   | waited for            | waited for                   |
    | any of these, and nobody waits       | kept there            | kept there                   |

It is waited for during 10 minutes in which something of the provider answered; nobody waits once the task is
cancelled or its money is used up. Results of a member that only its leader hears come through the leader. What came
is forced to disk before a node is told to forget it. `outputs/` comes after that, once it is clear that no other
attempt follows.
"""
