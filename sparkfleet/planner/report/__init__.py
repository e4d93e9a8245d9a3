"""Plans and differences in prose. The only place of the planner with prose."""
