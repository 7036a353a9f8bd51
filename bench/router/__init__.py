"""Programs of engines and routers, as tests start them, and what routers cost and find."""
