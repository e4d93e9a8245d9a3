"""What people type: one file per verb."""
