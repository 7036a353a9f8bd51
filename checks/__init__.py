"""Whether the product does what it promises, in long random runs."""
