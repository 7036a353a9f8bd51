"""What the router costs, and how often requests find their prefix on the engine that it chooses."""
