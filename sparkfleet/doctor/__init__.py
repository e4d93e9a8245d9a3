"""What is wrong with a fleet, what that means, and what to type: checks are pure, gathering is thin."""
