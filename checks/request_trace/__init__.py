"""What one streamed completion touches: our files, functions, calls per step and record types.

A real server answers the same request twice over HTTP; the second answer is traced in all threads
of the server with `sys.setprofile`. Nothing here imports the engine except its entry point, and
the step boundary is found by name, so that two layouts of the engine can be compared.
"""
