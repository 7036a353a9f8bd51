"""The reference: each op as one would write it on a board, in plain torch; see `backend`."""
