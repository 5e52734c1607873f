"""One attempt: starts an agent on every node, follows the gang to its end, and fetches everything it wrote.

A table in `node_verdict.py` decides what follows when a node does not answer. A node is lost only if two sources say
so. If nothing at all answers from this machine, its own network is probably down, and nothing is decided. Every node
gets 25 s in every phase, and one last probe over a new connection. A replacement for an unreachable node starts only
when that node has certainly stopped its workers (`node/config/fencing.py`), so there are never two processes of one
rank.

A node's directory is removed only when everything in it has been fetched. The final sizes of the files say what each
node still holds, and a table in `unfetched.py` decides which of them are waited for. Results of a member that only its
leader can reach are relayed by the leader. Files are synced to disk here before the node is told to remove them.
`outputs/` is fetched last, once it is clear that no other attempt follows.
"""
