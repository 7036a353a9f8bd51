"""`specdecode-engine chat`: a conversation in the terminal."""
