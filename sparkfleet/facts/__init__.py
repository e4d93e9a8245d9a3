"""What is true of nodes, links and checkpoints: what to read, and what it says."""
