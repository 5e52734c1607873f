"""`setup=`: commands that a node runs once before its workers start.

They are workers of a reaper of their own, below a fork server that imports nothing and ends with them: volumes,
stopping and what is left behind are as for any worker, and no process that a worker is forked from began before a
package was installed (a `.pth` file is read when Python starts). Their output is the stream "setup" of the node's
first rank. What was done is noted in the node's directory, and on the machine for tasks that find it warm (done.py).
"""
