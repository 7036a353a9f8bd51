"""The next state of a trial: begin, proceed, finish. Pure."""
