"""Models and images on the nodes' disks: staged, listed, pruned."""
