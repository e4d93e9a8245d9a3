"""Use-cases of the fleet itself: up and down, drain, upgrade, move its head, its store and secrets."""
