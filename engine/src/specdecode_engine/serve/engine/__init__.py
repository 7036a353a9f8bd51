"""The bridge between the event loop and the thread of the engine core."""
