"""The compiler gate: what every Triton kernel takes on every GPU, known without a GPU."""
