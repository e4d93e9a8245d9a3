"""Fits the planner's factors: priors, measurements as matrices, the solver, validation. Needs numpy."""
