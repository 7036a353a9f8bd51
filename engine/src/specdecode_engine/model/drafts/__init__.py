"""Draft models: configuration, weights and forward."""
