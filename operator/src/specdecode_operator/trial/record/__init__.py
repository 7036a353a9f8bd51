"""What is stored of a trial, and how it is written and read. Pure."""
