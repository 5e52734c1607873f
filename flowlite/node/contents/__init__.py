"""Contents of a task that nodes get from one another, in place of each of them from the client's machine.

A content is a file by its hash: one of the project, or the call with its arguments. The supervisor says who gets them
from whom (`supervise/attempt/distribution.py`); this room is what it runs on the nodes, before an agent is there:

    contents-serve     on a node that has them all: gives them to the other nodes of the task, until its input ends
    contents-fetch     on a node that lacks some: gets them from one of these, or says what it lacks

Both read one JSON object from standard input, and write one to standard output. Both use `TaskContents`, the contents
that belong to the task. Nothing else is given away, and nothing else is stored.

A connection opens as every connection between processes of a task does (`protocol/stream.py`), inside TLS with a
certificate that was made for this distribution alone. Then the node that fetches sends lines of hashes, and gets for
each of them its size (8 bytes) and the content, or `ABSENT`. It compares the hash before a content gets its name, so
that a node can give another one nothing but the right content. One that gives a wrong one is not asked again.
"""
