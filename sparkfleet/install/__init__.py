"""Installs the same sparkfleet and Ray on every node, in their own environment.

release.py              wheels and exact versions for every node
environment_program.py  makes the environment; it runs on the node, with the standard library only
environment.py          runs that program on all nodes
removal_program.py      removes it again, with the fleet's state; on the node, too
uninstall.py            runs that program on a node
"""
