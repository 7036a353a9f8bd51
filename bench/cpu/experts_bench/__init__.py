"""The experts op of a CPU against the linear maps that it consists of."""
