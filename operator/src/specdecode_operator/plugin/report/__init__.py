"""The page of `kubectl specdecode report NAME`: one HTML file without scripts or other files."""
