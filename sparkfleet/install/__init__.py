"""The same sparkfleet and Ray on every node, in an environment of its own.

release.py      what every node gets: wheels, and the exact versions
remote.py       the program that makes the environment; it runs on the node, with the standard library only
environment.py  from here to there
"""
