"""What keeps it true: the controller, its groups, and how both are brought up."""
