"""From a boot file to a running core: what is decided and built once."""
