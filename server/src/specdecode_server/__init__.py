"""What the HTTP servers of engine and router share; without torch, and without any model."""
