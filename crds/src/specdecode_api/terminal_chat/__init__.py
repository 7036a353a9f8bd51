"""A conversation in the terminal with a served model, for both programs that have one."""
