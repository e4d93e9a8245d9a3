"""How nodes are reached, and how ranks are run on them. Imports nothing: the supervisor stays small."""
