"""What a person runs: check an installation, render a resource, replay a trial."""
