"""The steps of a release: everything is made and checked first, and published last."""
