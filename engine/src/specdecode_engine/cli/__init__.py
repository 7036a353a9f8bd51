"""The command line: flags and boot file."""
