"""What people see of a trial. Pure."""
