"""How fast the product is, next to peers and to limits of the machine."""
