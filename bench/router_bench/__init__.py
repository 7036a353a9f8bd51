"""Programs of engines and routers, as tests start them."""
