"""Where keys, values and states lie, and what a forward sees of them."""
