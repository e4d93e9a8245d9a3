"""How the planner's factors are fitted: priors, measurements as matrices, the solver, validation. Needs numpy."""
