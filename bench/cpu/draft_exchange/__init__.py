"""How long running streams wait for their next token while the draft is exchanged."""
