"""`make demo` and `make serve`: the product's main job, shown on real parts, step by step."""
