"""How does a command line of `vllm serve` become a custom resource?"""
