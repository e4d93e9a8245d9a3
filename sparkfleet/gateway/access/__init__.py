"""Keys, paths, origins and limits: what a client may send."""
