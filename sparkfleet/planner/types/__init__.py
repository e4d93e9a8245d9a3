"""Values that the planner works on and hands over."""
