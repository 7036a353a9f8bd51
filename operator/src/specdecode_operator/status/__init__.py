"""What a resource reports: its conditions, events and status. Pure."""
