"""One program per engine: starts it with the settings that docs/gpu.md lists, measures cells."""
