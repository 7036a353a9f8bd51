"""Target models: configuration, weights and forward."""
