"""The router: sends requests to engines, and continues a broken stream on another one."""
